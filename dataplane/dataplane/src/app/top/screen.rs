//! The screen: its state, the effect of keys, and its drawing.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table as Grid, TableState};

use super::model::{History, Model, find};
use super::tables::{self, Column, Sort, Table};
use dataplane_core::telemetry::{BitsPerSecond, Duration, LatencyReport, Live, PacketsPerSecond};

/// A page of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    Overview,
    Ports,
    Workers,
    Stages,
    Drops,
    Latency,
}

impl Page {
    const ALL: [(Self, &'static str); 6] = [
        (Self::Overview, "overview"),
        (Self::Ports, "ports"),
        (Self::Workers, "workers"),
        (Self::Stages, "stages"),
        (Self::Drops, "drops"),
        (Self::Latency, "latency"),
    ];

    /// Returns the page that is `step` pages away.
    fn step(self, step: usize) -> Self {
        Self::ALL[(self as usize + step) % Self::ALL.len()].0
    }
}

/// The connection to the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Open,
    /// The program does not answer, for this reason.
    Lost(String),
}

/// The state of the screen.
pub(super) struct Screen {
    pub(super) model: Model,
    pub(super) connection: Connection,
    page: Page,
    /// The stage whose page is open.
    stage: Option<String>,
    is_paused: bool,
    /// The order of the rows, for each page.
    sorts: [Option<Sort>; Page::ALL.len()],
    selected: usize,
    has_colours: bool,
}

const KEYS: &str = "1-6 page  ↑↓ row  ←→ sort  r reverse  ⏎ stage  esc back  p pause  q quit";

impl Screen {
    pub(super) fn new(has_colours: bool) -> Self {
        Self {
            model: Model::default(),
            connection: Connection::Open,
            page: Page::Overview,
            stage: None,
            is_paused: false,
            sorts: [None; Page::ALL.len()],
            selected: 0,
            has_colours,
        }
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Handles a key. Returns `false` if the key ends the command.
    pub(super) fn press(&mut self, key: KeyEvent) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Esc | KeyCode::Backspace if self.stage.is_some() => self.stage = None,
            KeyCode::Esc if self.page == Page::Overview => return false,
            KeyCode::Esc => self.open(Page::Overview),
            KeyCode::Char(number @ '1'..='6') => {
                self.open(Page::ALL[number as usize - '1' as usize].0);
            }
            KeyCode::Tab => self.open(self.page.step(1)),
            KeyCode::BackTab => self.open(self.page.step(Page::ALL.len() - 1)),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.selected = self.selected.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected + 1),
            KeyCode::PageUp => self.selected = self.selected.saturating_sub(10),
            KeyCode::PageDown => self.select(self.selected + 10),
            KeyCode::Home => self.selected = 0,
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Left | KeyCode::Char('<') => self.sort(false),
            KeyCode::Right | KeyCode::Char('>') => self.sort(true),
            KeyCode::Char('r') => {
                if let Some(sort) = &mut self.sorts[self.page as usize] {
                    sort.is_descending = !sort.is_descending;
                }
            }
            KeyCode::Enter if matches!(self.page, Page::Overview | Page::Stages) => {
                let table = self.table();
                let row = table.as_ref().and_then(|table| table.rows.get(self.selected));
                self.stage = row.and_then(|row| row.first()).map(|cell| cell.text.clone());
            }
            _ => {}
        }
        true
    }

    fn open(&mut self, page: Page) {
        (self.page, self.stage, self.selected) = (page, None, 0);
    }

    fn select(&mut self, row: usize) {
        let rows = self.table().map_or(0, |table| table.rows.len());
        self.selected = row.min(rows.saturating_sub(1));
    }

    /// Sorts by the next or by the previous column. The original order of the rows comes after the last column and
    /// before the first column.
    fn sort(&mut self, is_next: bool) {
        let Some(table) = self.table() else { return };
        let columns = table.columns.len();
        // 0 is the original order, and 1 is the first column.
        let at = self.sorts[self.page as usize].map_or(0, |sort| sort.column + 1);
        let at = (at + if is_next { 1 } else { columns }) % (columns + 1);
        self.sorts[self.page as usize] = at.checked_sub(1).map(|column| table.order(column));
    }

    /// Returns the table of the page. Keys select and sort the rows of this table.
    fn table(&self) -> Option<Table> {
        let (model, live) = (&self.model, self.model.live()?);
        let mut table = match self.page {
            Page::Overview | Page::Stages => tables::stages(model, live),
            Page::Ports => tables::ports(model, live),
            Page::Workers => tables::workers(model, live),
            Page::Drops => tables::drops(model, live),
            Page::Latency => return None,
        };
        table.sort(self.sorts[self.page as usize]);
        Some(table)
    }

    fn style(&self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Returns the style of a value. A problem is bold, and also red on a screen with colours.
    fn style_if_bad(&self, is_bad: bool) -> Style {
        if is_bad { self.style(Color::Red).add_modifier(Modifier::BOLD) } else { Style::new() }
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let rows = [Constraint::Length(3), Constraint::Min(0), Constraint::Length(1)];
        let [head, body, foot] = Layout::vertical(rows).areas(frame.area());
        self.draw_head(frame, head);
        self.draw_foot(frame, foot);
        let Some(live) = self.model.live() else {
            frame.render_widget(Paragraph::new("waiting for the first answer"), body);
            return;
        };
        match (&self.stage, self.page) {
            (Some(stage), _) => self.draw_stage(frame, body, live, stage),
            (None, Page::Overview) => self.draw_overview(frame, body, live),
            (None, Page::Latency) => self.draw_latency(frame, body, live),
            (None, _) => {
                if let Some(table) = self.table() {
                    self.draw_table(frame, body, &table, true);
                }
            }
        }
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines = Vec::new();
        if let Some(live) = self.model.live() {
            let Live { pid, version, config, report, .. } = live;
            let state = match &self.connection {
                Connection::Open if self.is_paused => " · paused",
                Connection::Open => "",
                Connection::Lost(_) => " · not connected",
            };
            lines.push(Line::from(vec![
                Span::styled(file_name(config).to_owned(), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(format!(" · process {pid} · version {version} · {:.0} s{state}", report.duration_s)),
            ]));
            let [rx, tx] =
                [live.recent.rates.rate_rx_mpps, live.recent.rates.rate_mpps].map(|rate| PacketsPerSecond(rate * 1e6));
            let [rx_bits, tx_bits] =
                [live.recent.rates.rate_rx_gbps, live.recent.rates.rate_gbps].map(|rate| BitsPerSecond(rate * 1e9));
            let dropped = self.model.rate(|report| report.ledger.dropped);
            let unaccounted = report.ledger.unaccounted;
            let mut rates = Vec::new();
            if unaccounted != 0 {
                rates.push(Span::styled(format!("unaccounted {unaccounted}"), self.style_if_bad(true)));
                rates.push(Span::raw(" · "));
            }
            rates.push(Span::raw(format!("in {rx} {rx_bits} · out {tx} {tx_bits} · ")));
            rates
                .push(Span::styled(format!("dropped {}", PacketsPerSecond(dropped)), self.style_if_bad(dropped > 0.0)));
            lines.push(Line::from(rates));
        } else {
            lines.extend([Line::raw("dataplane top"), Line::raw("")]);
        }
        let error = self.model.live().and_then(|live| live.report.errors.first());
        lines.push(match (&self.connection, error) {
            (Connection::Lost(why), _) => Line::styled(why.clone(), self.style_if_bad(true)),
            (Connection::Open, Some(error)) => Line::styled(format!("error: {error}"), self.style_if_bad(true)),
            (Connection::Open, None) => self.tabs(),
        });
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Returns the line with the names of the pages.
    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (number, (page, name)) in Page::ALL.into_iter().enumerate() {
            let is_open = page == self.page && self.stage.is_none();
            let style = if is_open { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
            spans.push(Span::styled(format!(" {} {name} ", number + 1), style));
        }
        if let Some(stage) = &self.stage {
            spans.push(Span::styled(format!(" stage {stage} "), Style::new().add_modifier(Modifier::REVERSED)));
        }
        Line::from(spans)
    }

    fn draw_foot(&self, frame: &mut Frame<'_>, area: Rect) {
        frame.render_widget(Paragraph::new(Line::styled(KEYS, Style::new().add_modifier(Modifier::DIM))), area);
    }

    fn draw_overview(&self, frame: &mut Frame<'_>, area: Rect, live: &Live) {
        let (ports, workers) = (tables::ports(&self.model, live), tables::workers(&self.model, live));
        // Half of the rows are for the stages.
        let most = (area.height / 5).max(2);
        let height = |table: &Table| Constraint::Length((table.rows.len() as u16 + 1).min(most));
        let parts =
            [Constraint::Length(4), height(&ports), height(&workers), Constraint::Min(3), Constraint::Length(1)];
        let [graphs, of_ports, of_workers, of_stages, latency] = Layout::vertical(parts).areas(area);
        let [received, sent, dropped] = Layout::horizontal([Constraint::Fill(1); 3]).spacing(1).areas(graphs);
        self.draw_graph(frame, received, "in", &self.model.received, Color::Green);
        self.draw_graph(frame, sent, "out", &self.model.sent, Color::Green);
        self.draw_graph(frame, dropped, "dropped", &self.model.dropped, Color::Red);
        self.draw_table(frame, of_ports, &ports, false);
        self.draw_table(frame, of_workers, &workers, false);
        if let Some(stages) = self.table() {
            self.draw_table(frame, of_stages, &stages, true);
        }
        frame.render_widget(Paragraph::new(latency_line(&live.recent.latency_ns)), latency);
    }

    /// Draws a history with its highest value in the title.
    fn draw_graph(&self, frame: &mut Frame<'_>, area: Rect, title: &str, history: &History, colour: Color) {
        let data = history.last(area.width.into());
        let highest = data.iter().copied().max().unwrap_or(0);
        self.draw_history(
            frame,
            area,
            &format!("{title}, at most {}", PacketsPerSecond(highest as f64)),
            &data,
            colour,
        );
    }

    fn draw_history(&self, frame: &mut Frame<'_>, area: Rect, title: &str, data: &[u64], colour: Color) {
        let block = Block::new().borders(Borders::TOP).title(title.to_owned());
        frame.render_widget(Sparkline::default().block(block).data(data.to_vec()).style(self.style(colour)), area);
    }

    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect, table: &Table, is_selectable: bool) {
        let sort = self.sorts[self.page as usize].filter(|_| is_selectable && self.stage.is_none());
        let is_text = |column: usize| {
            let heading = table.columns[column].0;
            column == 0 || ["link", "use", "kind"].contains(&heading)
        };
        let width = |column: usize, (heading, width): &Column| {
            // Room for the mark of the order.
            let width = (*width).max(heading.chars().count() as u16 + 1);
            if column == 0 { Constraint::Min(width) } else { Constraint::Length(width) }
        };
        let widths: Vec<Constraint> = table.columns.iter().enumerate().map(|(at, column)| width(at, column)).collect();
        let aligned =
            |column: usize, line: Line<'static>| Cell::from(if is_text(column) { line } else { line.right_aligned() });
        let heading = |(at, (heading, _)): (usize, &Column)| {
            let mark = match sort {
                Some(sort) if sort.column == at => {
                    if sort.is_descending {
                        "↓"
                    } else {
                        "↑"
                    }
                }
                _ => "",
            };
            aligned(at, Line::raw(format!("{heading}{mark}")))
        };
        let headings = Row::new(table.columns.iter().enumerate().map(heading));
        let row = |row: &Vec<tables::Cell>| {
            let cells = row.iter().enumerate();
            Row::new(
                cells.map(|(at, cell)| aligned(at, Line::styled(cell.text.clone(), self.style_if_bad(cell.is_bad)))),
            )
        };
        let grid = Grid::new(table.rows.iter().map(row), widths)
            .header(headings.style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = is_selectable.then(|| self.selected.min(table.rows.len().saturating_sub(1)));
        let mut state = TableState::new().with_selected(selected.filter(|_| !table.rows.is_empty()));
        frame.render_stateful_widget(grid, area, &mut state);
    }

    fn draw_latency(&self, frame: &mut Frame<'_>, area: Rect, live: &Live) {
        let [graph, text] = Layout::vertical([Constraint::Length(8), Constraint::Min(0)]).areas(area);
        let data = self.model.latency.last(graph.width.into());
        let highest = Duration(data.iter().copied().max().unwrap_or(0) as f64);
        self.draw_history(frame, graph, &format!("99th percentile, at most {highest}"), &data, Color::Cyan);
        let mut lines = vec![Line::raw(format!("{:<16}{:>12}{:>12}", "", "now", "since start"))];
        let (now, all) = (&live.recent.latency_ns, &live.report.latency_ns);
        type Value = fn(&LatencyReport) -> u64;
        let values: [(&str, Value); 5] = [
            ("median", |latency| latency.p50),
            ("90 %", |latency| latency.p90),
            ("99 %", |latency| latency.p99),
            ("99.9 %", |latency| latency.p999),
            ("maximum", |latency| latency.max),
        ];
        for (name, value) in values {
            let [now, all] = [now, all].map(|latency| match latency.count {
                0 => "–".to_owned(),
                _ => Duration(value(latency) as f64).to_string(),
            });
            lines.push(Line::raw(format!("{name:<16}{now:>12}{all:>12}")));
        }
        lines.push(Line::raw(format!("{:<16}{:>12}{:>12}", "packets", now.count, all.count)));
        lines.push(Line::raw(format!("{:<16}{:>12}{:>12}", "not measured", now.unmeasured, all.unmeasured)));
        lines.push(Line::raw(format!("{:<16}{:>12}", "clock", all.source)));
        frame.render_widget(Paragraph::new(lines), text);
    }

    fn draw_stage(&self, frame: &mut Frame<'_>, area: Rect, live: &Live, stage: &str) {
        let Some(report) = find(&live.report, stage) else {
            frame.render_widget(Paragraph::new(format!("there is no stage {stage} any more")), area);
            return;
        };
        let parts = [Constraint::Length(1), Constraint::Length(5), Constraint::Min(0)];
        let [line, graph, rest] = Layout::vertical(parts).areas(area);
        let cost = live.recent.costs.iter().find(|cost| cost.part == stage);
        let time = cost.map_or("–".to_owned(), |cost| Duration(cost.ns).to_string());
        let burst = cost.map_or("–".to_owned(), |cost| format!("{:.1}", cost.burst));
        let text = format!(
            "{} · {} packets in {} batches · time per packet {time} · burst {burst}",
            report.kind, report.packets, report.batches
        );
        frame.render_widget(Paragraph::new(text), line);
        if let Some(history) = self.model.stage_history(stage) {
            self.draw_graph(frame, graph, "packets", history, Color::Green);
        }
        self.draw_table(frame, rest, &tables::details(&self.model, report), false);
    }
}

/// Returns the file name of a path, because a long path would leave no room for the other values.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn latency_line(latency: &LatencyReport) -> String {
    if latency.count == 0 {
        return "latency: no packet was measured".to_owned();
    }
    let [p50, p90, p99, p999, max] =
        [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(|nanos| Duration(nanos as f64));
    format!("latency: p50 {p50} · p90 {p90} · p99 {p99} · p99.9 {p999} · max {max}")
}
