//! Tests of the screen with recorded answers.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::{Color, Modifier};

use super::screen::{Connection, Screen};
use dataplane_core::telemetry::Live;

/// Returns two consecutive answers of a running program.
fn recorded() -> [Live; 2] {
    let mut lines = include_str!("recorded.jsonl").lines().map(|line| serde_json::from_str(line).unwrap());
    [lines.next().unwrap(), lines.next().unwrap()]
}

fn screen() -> Screen {
    let mut screen = Screen::new(true);
    recorded().into_iter().for_each(|live| screen.model.update(live));
    screen
}

fn drawn(screen: &Screen, width: u16, height: u16) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal
}

/// Returns the lines of the screen.
fn lines(screen: &Screen) -> Vec<String> {
    let terminal = drawn(screen, 80, 24);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..24).map(line).collect()
}

/// Presses keys. Letters stand for themselves.
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
        let mut screen = Screen::new(has_colours);
        let [first, mut second] = recorded();
        second.report.ports[0].link_up = Some(false);
        second.report.ledger.unaccounted = -3;
        second.report.errors = vec!["worker 1 does not answer".to_owned()];
        screen.model.update(first);
        screen.model.update(second);
        let lines = lines(&screen);
        assert!(lines[1].starts_with("unaccounted -3 · in "), "{lines:#?}");
        assert_eq!(lines[2], "error: worker 1 does not answer");
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
    let mut screen = Screen::new(true);
    assert_eq!(lines(&screen)[3], "waiting for the first answer");
    let [first, second] = recorded();
    screen.model.update(first.clone());
    screen.model.update(second);
    assert_eq!(screen.model.received.last(80).len(), 2);
    screen.connection = Connection::Lost("the program has ended: waiting".to_owned());
    let page = lines(&screen);
    assert!(page[0].ends_with("· not connected") && page[2] == "the program has ended: waiting", "{page:#?}");
    screen.connection = Connection::Open;
    screen.model.update(Live { pid: first.pid + 1, ..first });
    assert_eq!(screen.model.received.last(80).len(), 1);
}

#[test]
fn rates_are_right_after_a_pause() {
    let [first, second] = recorded();
    let mut screen = Screen::new(true);
    let start = first.report.duration_s;
    screen.model.update(first.clone());
    // The answer after a pause covers only the last interval, but its counters have grown during the whole pause.
    let mut later = second.clone();
    later.report.duration_s = start + 10.0;
    later.report.stages[0].packets = first.report.stages[0].packets + 50_000;
    screen.model.update(later);
    press(&mut screen, &[KeyCode::Char('4')]);
    let page = lines(&screen);
    assert!(page[4].starts_with("parse") && page[4].contains(" 5.00 kpps "), "{page:#?}");
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
