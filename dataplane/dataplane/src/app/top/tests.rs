//! Tests of the screen with recorded answers.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::screen::{Connection, Screen};
use dataplane_core::telemetry::LiveStatistics;

/// Returns two consecutive answers of a running program.
fn recorded() -> [LiveStatistics; 2] {
    let mut lines = include_str!("recorded.jsonl").lines().map(|line| serde_json::from_str(line).unwrap());
    [lines.next().unwrap(), lines.next().unwrap()]
}

fn screen() -> Screen {
    let mut screen = Screen::new(true, true);
    let [first, second] = recorded();
    screen.model.connect(first);
    screen.model.update(second);
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal
}

/// Returns the lines of the screen.
fn lines(screen: &Screen) -> Vec<String> {
    lines_of(screen, 80, 24)
}

fn lines_of(screen: &Screen, width: u16, height: u16) -> Vec<String> {
    let terminal = drawn(screen, width, height);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// Presses keys without modifiers.
fn press(screen: &mut Screen, keys: &[KeyCode]) {
    for key in keys {
        assert!(screen.press(KeyEvent::new(*key, KeyModifiers::NONE)));
    }
}

/// Returns the first words of the rows of the table below the heading that starts with `heading`.
fn rows(screen: &Screen, heading: &str) -> Vec<String> {
    let lines = lines(screen);
    let from = lines.iter().position(|line| line.starts_with(heading)).unwrap_or_else(|| panic!("{lines:#?}"));
    let rows = lines[from + 1..].iter().take_while(|line| !line.is_empty() && !line.starts_with("latency"));
    rows.map(|row| row.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn overview_fits_80_columns_and_24_lines() {
    let expected: Vec<&str> = include_str!("overview.txt").lines().collect();
    assert_eq!(lines(&screen()), expected);
}

#[test]
fn keys_open_pages_and_sort_rows() {
    let mut screen = screen();
    for (key, heading) in [('2', "port "), ('3', "worker "), ('4', "stage "), ('5', "drop "), ('6', "99th percentile")]
    {
        press(&mut screen, &[KeyCode::Char(key)]);
        assert!(lines(&screen)[3].starts_with(heading), "{key}: {:#?}", lines(&screen));
    }
    press(&mut screen, &[KeyCode::Char('4')]);
    let original = ["parse", "rules", "limit", "count", "out"];
    assert_eq!(rows(&screen, "stage"), original);
    press(&mut screen, &[KeyCode::Right]);
    assert_eq!(rows(&screen, "stage↑"), ["count", "limit", "out", "parse", "rules"]);
    press(&mut screen, &[KeyCode::Char('r')]);
    assert_eq!(rows(&screen, "stage↓"), ["rules", "parse", "out", "limit", "count"]);
    // The slowest stage is first.
    press(&mut screen, &[KeyCode::Right, KeyCode::Right, KeyCode::Right]);
    assert!(lines(&screen)[3].contains(" time↓ "));
    assert_eq!(rows(&screen, "stage")[0], "rules");
    press(&mut screen, &[KeyCode::Left, KeyCode::Left, KeyCode::Left, KeyCode::Left]);
    assert_eq!(rows(&screen, "stage "), original);
    press(&mut screen, &[KeyCode::Left]);
    assert!(lines(&screen)[3].ends_with(" consumed↓"), "{:#?}", lines(&screen));
    // Other pages keep their own order.
    press(&mut screen, &[KeyCode::Char('2')]);
    assert_eq!(rows(&screen, "port "), ["lan", "wan"]);
    press(&mut screen, &[KeyCode::Tab, KeyCode::BackTab, KeyCode::BackTab]);
    assert!(lines(&screen)[3].starts_with("in, at most"));
}

#[test]
fn enter_opens_the_page_of_the_selected_stage() {
    let mut screen = screen();
    press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
    let page = lines(&screen);
    assert!(page[2].ends_with(" stage rules"), "{page:#?}");
    assert!(page[3].starts_with("acl · ") && page[3].contains("time per packet"), "{page:#?}");
    let names: Vec<&str> = page.iter().filter_map(|line| line.split("  ").next()).collect();
    for name in ["denied", "default", "no_games"] {
        assert!(names.contains(&name), "{name}: {page:#?}");
    }
    press(&mut screen, &[KeyCode::Esc]);
    assert!(lines(&screen)[2].ends_with("6 latency"));
    // A selection after the last row stays on the last row.
    press(&mut screen, &[KeyCode::PageDown, KeyCode::End, KeyCode::Enter]);
    assert!(lines(&screen)[2].ends_with(" stage out"));
    press(&mut screen, &[KeyCode::Backspace]);
    assert!(!screen.press(KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE)));
    assert!(!screen.press(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
    assert!(!screen.press(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

#[test]
fn problems_stand_out_with_and_without_colours() {
    for has_colours in [true, false] {
        let mut screen = Screen::new(has_colours, true);
        let [first, mut second] = recorded();
        second.report.ports[0].link_up = Some(false);
        second.report.ledger.unaccounted = -3;
        second.report.errors = vec!["worker 1 does not answer".to_owned()];
        screen.model.connect(first);
        screen.model.update(second);
        let lines = lines(&screen);
        assert!(lines[1].starts_with("unaccounted -3 · in "), "{lines:#?}");
        assert!(lines[2].starts_with(" 1 overview"), "{lines:#?}");
        assert_eq!(lines[3], "error: worker 1 does not answer");
        let terminal = drawn(&screen, 80, 24);
        let buffer = terminal.backend().buffer();
        let at = |text: &str| {
            let y = lines.iter().position(|line| line.contains(text)).unwrap();
            let x = lines[y][..lines[y].find(text).unwrap()].chars().count();
            &buffer[(x as u16, y as u16)]
        };
        for text in ["unaccounted -3", "error: ", "down"] {
            let cell = at(text);
            assert!(cell.modifier.contains(Modifier::BOLD), "{text}");
            assert_eq!(cell.fg == Color::Red, has_colours, "{text}");
        }
        assert!(!at("up ").modifier.contains(Modifier::BOLD));
    }
}

#[test]
fn lost_connection_is_shown_and_a_new_run_starts_a_new_history() {
    let mut screen = Screen::new(true, true);
    assert_eq!(lines(&screen)[3], "waiting for the first answer");
    let [first, second] = recorded();
    screen.model.connect(first.clone());
    assert_eq!(lines(&screen)[3], "waiting for the first answer");
    screen.model.update(second.clone());
    assert_eq!(screen.model.received.last(80).len(), 1);
    screen.connection = Connection::Lost("the program has ended: waiting".to_owned());
    let page = lines(&screen);
    assert!(page[0].ends_with("· not connected") && page[3] == "the program has ended: waiting", "{page:#?}");
    screen.connection = Connection::Open;
    // After a reconnection to the same run, the first answer adds no rates. The next rates start at this answer.
    let mut third = second.clone();
    third.report.duration_s += 5.0;
    screen.model.connect(third.clone());
    assert_eq!(screen.model.received.last(80).len(), 1);
    third.report.duration_s += 1.0;
    screen.model.update(third);
    assert_eq!((screen.model.received.last(80).len(), screen.model.received.last(1)), (2, vec![0]));
    screen.model.connect(LiveStatistics { pid: first.pid + 1, ..first });
    assert_eq!(screen.model.received.last(80).len(), 0);
}

#[test]
fn all_rates_cover_the_time_since_the_previous_answer() {
    let [first, second] = recorded();
    let mut screen = Screen::new(true, true);
    let start = first.report.duration_s;
    screen.model.connect(first.clone());
    // `recent` of the answer covers another period than the time between these two answers.
    let mut later = second.clone();
    later.report.duration_s = start + 10.0;
    later.report.stages[0].packets = first.report.stages[0].packets + 50_000;
    later.report.packets.rx = first.report.packets.rx + 60_000;
    later.report.ports[0].packets.rx = first.report.ports[0].packets.rx + 70_000;
    later.report.workers[0].ledger.tx = first.report.workers[0].ledger.tx + 80_000;
    screen.model.update(later);
    press(&mut screen, &[KeyCode::Char('4')]);
    let page = lines(&screen);
    assert!(page[4].starts_with("parse") && page[4].contains(" 5.00 kpps "), "{page:#?}");
    assert!(page[1].starts_with("in 6.00 kpps "), "{page:#?}");
    press(&mut screen, &[KeyCode::Char('2')]);
    assert!(lines(&screen)[4].contains(" 7.00 kpps "), "{:#?}", lines(&screen));
    press(&mut screen, &[KeyCode::Char('3')]);
    assert!(lines(&screen)[4].contains(" 8.00 kpps "), "{:#?}", lines(&screen));
}

#[test]
fn stage_page_scrolls_and_sorts_its_own_rows() {
    let mut screen = Screen::new(true, true);
    let [mut first, mut second] = recorded();
    for (live, add) in [(&mut first, 0), (&mut second, 1_000_000_000_000_u64)] {
        let counters = &mut live.report.stages[1].counters;
        counters.extend((0..100).map(|number| (format!("rule {number:03}"), number + add)));
    }
    screen.model.connect(first);
    screen.model.update(second);
    press(&mut screen, &[KeyCode::Char('4'), KeyCode::Down, KeyCode::Enter]);
    assert!(!lines(&screen).iter().any(|line| line.starts_with("rule 099")));
    press(&mut screen, &[KeyCode::End]);
    let page = lines(&screen);
    let row = page.iter().find(|line| line.starts_with("rule 099")).unwrap_or_else(|| panic!("{page:#?}"));
    assert!(row.contains(" 1000000000099"), "{row}");
    assert!(row.split("  ").any(|cell| cell.trim().ends_with(" T/s")), "{row}");
    // The order of the rows belongs to the page of the stage, and Enter does not open another stage.
    press(&mut screen, &[KeyCode::Home, KeyCode::Right, KeyCode::Char('r'), KeyCode::Enter]);
    let page = lines(&screen);
    assert!(page.iter().any(|line| line.starts_with("name↓")) && page[2].ends_with(" stage rules"), "{page:#?}");
    assert!(page.iter().any(|line| line.starts_with("rule 099")), "{page:#?}");
    press(&mut screen, &[KeyCode::Esc]);
    assert_eq!(rows(&screen, "stage "), ["parse", "rules", "limit", "count", "out"]);
    press(&mut screen, &[KeyCode::Enter]);
    assert!(lines(&screen)[2].ends_with(" stage rules"));
}

#[test]
fn narrow_screen_drops_columns_and_never_cuts_a_number() {
    let mut screen = screen();
    let whole: std::collections::BTreeSet<String> = "123456"
        .chars()
        .flat_map(|key| {
            press(&mut screen, &[KeyCode::Char(key)]);
            lines_of(&screen, 200, 24)
        })
        .flat_map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
        .collect();
    press(&mut screen, &[KeyCode::Char('2')]);
    for width in 20..80 {
        let page = lines_of(&screen, width, 24);
        assert_eq!(page[3].ends_with('…'), width < 74, "{width}: {page:#?}");
        let lines = [&page[1], &page[4], &page[5]];
        for number in lines.iter().flat_map(|line| line.split(' ')).filter(|word| word.parse::<f64>().is_ok()) {
            assert!(whole.contains(number), "{number} at width {width}");
        }
    }
    assert!(lines(&screen)[3].ends_with("dropped"));
}

#[test]
fn long_and_wide_names_are_shortened_with_a_mark() {
    let mut screen = Screen::new(true, true);
    let [mut first, mut second] = recorded();
    for live in [&mut first, &mut second] {
        live.report.ports[0].name = "端口".repeat(20);
        live.report.ports[1].name = "uplink-to-the-internet".to_owned();
    }
    screen.model.connect(first);
    screen.model.update(second);
    press(&mut screen, &[KeyCode::Char('2')]);
    let page = lines(&screen);
    assert!(page[5].starts_with("uplink-to-the… "), "{page:#?}");
    // Each wide character takes two cells, so the other columns stay in place.
    let at = |line: &str| unicode_at(line, "kpps");
    assert!(page[4].contains('…') && at(&page[4]) == at(&page[5]), "{page:#?}");
}

/// Returns the column of the first occurrence of `text`. In the lines of the screen, a wide character is followed by a
/// space.
fn unicode_at(line: &str, text: &str) -> usize {
    line[..line.find(text).unwrap()].chars().count()
}

#[test]
fn overview_counts_hidden_rows_and_shows_problems_first() {
    let mut screen = Screen::new(true, true);
    let [mut first, mut second] = recorded();
    for live in [&mut first, &mut second] {
        let (port, worker) = (live.report.ports[1].clone(), live.report.workers[1].clone());
        for number in 0..6 {
            let mut port = port.clone();
            port.name = format!("p{number}");
            port.link_up = Some(number != 5);
            live.report.ports.push(port);
            live.report.workers.push(worker.clone());
        }
    }
    screen.model.connect(first);
    screen.model.update(second);
    let ports = rows(&screen, "port ");
    assert_eq!(ports[0], "p5");
    let page = lines(&screen);
    assert!(page.iter().any(|line| line.ends_with("6 more: key 2")), "{page:#?}");
    assert!(page.iter().any(|line| line.ends_with("6 more: key 3")), "{page:#?}");
    press(&mut screen, &[KeyCode::Char('3'), KeyCode::End]);
    assert_eq!(rows(&screen, "worker ").len(), 8);
}

#[test]
fn errors_do_not_hide_the_pages_and_all_errors_can_be_read() {
    let mut screen = Screen::new(true, true);
    let [first, mut second] = recorded();
    second.report.errors = vec!["the first error".to_owned(), "long ".repeat(20), "the last error".to_owned()];
    screen.model.connect(first);
    screen.model.update(second);
    let page = lines(&screen);
    assert!(page[2].ends_with("6 latency") && page[3] == "3 errors (key e): the first error", "{page:#?}");
    press(&mut screen, &[KeyCode::Char('e')]);
    let page = lines(&screen);
    assert!(page.contains(&"the first error".to_owned()) && page.contains(&"the last error".to_owned()), "{page:#?}");
    press(&mut screen, &[KeyCode::Esc]);
    assert!(lines(&screen).iter().any(|line| line.starts_with("port ")));
}

#[test]
fn screen_without_utf8_has_only_ascii() {
    let mut screen = Screen::new(true, false);
    let [first, second] = recorded();
    screen.model.connect(first);
    screen.model.update(second);
    for key in "123456".chars() {
        press(&mut screen, &[KeyCode::Char(key)]);
        let page = lines(&screen);
        assert!(page.iter().all(|line| line.is_ascii()), "{page:#?}");
    }
    let variables = |pairs: &'static [(&'static str, &'static str)]| {
        move |name: &str| pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).into())
    };
    assert!(super::is_utf8(variables(&[("LANG", "de_DE.UTF-8")])));
    assert!(super::is_utf8(variables(&[("LC_ALL", "C.utf8"), ("LANG", "C")])));
    assert!(!super::is_utf8(variables(&[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")])));
    assert!(!super::is_utf8(variables(&[("LC_CTYPE", "de_DE.ISO-8859-1")])));
    assert!(!super::is_utf8(variables(&[])));
}

#[test]
fn every_page_draws_on_every_size() {
    let mut screen = screen();
    for key in "123456".chars() {
        press(&mut screen, &[KeyCode::Char(key)]);
        for (width, height) in [(1, 1), (3, 2), (20, 5), (80, 24), (81, 10), (300, 100)] {
            drawn(&screen, width, height);
        }
    }
    press(&mut screen, &[KeyCode::Char('1'), KeyCode::Enter]);
    for (width, height) in [(1, 1), (20, 5), (300, 100)] {
        drawn(&screen, width, height);
    }
}
