//! The screen: its state, the effect of keys, and its drawing.

use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Cell, Paragraph, Row, Sparkline, Table as Grid, TableState, Wrap};

use super::model::{History, Model, find};
use super::tables::{self, Column, ScreenTable, Sort};
use dataplane_core::telemetry::{BitsPerSecond, CostReport, Duration, LatencyReport, LiveStatistics, PacketsPerSecond};

/// A page of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScreenPage {
    Overview,
    Ports,
    Workers,
    Stages,
    Drops,
    Latency,
}

impl ScreenPage {
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
    page: ScreenPage,
    /// The stage whose page is open.
    stage: Option<String>,
    is_paused: bool,
    is_listing_errors: bool,
    /// The order of the rows, for each page, and then for the page of a stage.
    sorts: [Option<Sort>; ScreenPage::ALL.len() + 1],
    /// The number of the selected row on the page, and on the page of a stage.
    selected: [usize; 2],
    has_colours: bool,
    /// Whether the terminal can display characters outside ASCII.
    is_utf8: bool,
}

const KEYS: &str = "1-6 page ↑↓ row ←→ sort r reverse enter stage e errors esc back p pause q quit";

impl Screen {
    pub(super) fn new(has_colours: bool, is_utf8: bool) -> Self {
        Self {
            model: Model::default(),
            connection: Connection::Open,
            page: ScreenPage::Overview,
            stage: None,
            is_paused: false,
            is_listing_errors: false,
            sorts: [None; ScreenPage::ALL.len() + 1],
            selected: [0; 2],
            has_colours,
            is_utf8,
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
            KeyCode::Char('e') => self.is_listing_errors = !self.is_listing_errors,
            KeyCode::Esc | KeyCode::Backspace if self.is_listing_errors => self.is_listing_errors = false,
            KeyCode::Esc | KeyCode::Backspace if self.stage.is_some() => self.stage = None,
            KeyCode::Esc if self.page == ScreenPage::Overview => return false,
            KeyCode::Esc => self.open(ScreenPage::Overview),
            KeyCode::Char(number @ '1'..='6') => {
                self.open(ScreenPage::ALL[number as usize - '1' as usize].0);
            }
            KeyCode::Tab => self.open(self.page.step(1)),
            KeyCode::BackTab => self.open(self.page.step(ScreenPage::ALL.len() - 1)),
            KeyCode::Char('p' | ' ') => self.is_paused = !self.is_paused,
            KeyCode::Up | KeyCode::Char('k') => self.select(self.selected().saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(self.selected() + 1),
            KeyCode::PageUp => self.select(self.selected().saturating_sub(10)),
            KeyCode::PageDown => self.select(self.selected() + 10),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(usize::MAX),
            KeyCode::Left | KeyCode::Char('<') => self.sort(false),
            KeyCode::Right | KeyCode::Char('>') => self.sort(true),
            KeyCode::Char('r') => {
                if let Some(sort) = &mut self.sorts[self.sorted()] {
                    sort.is_descending = !sort.is_descending;
                }
            }
            KeyCode::Enter
                if self.stage.is_none() && matches!(self.page, ScreenPage::Overview | ScreenPage::Stages) =>
            {
                let table = self.table();
                let row = table.as_ref().and_then(|table| table.rows.get(self.selected()));
                self.stage = row.and_then(|row| row.first()).map(|cell| cell.text.clone());
                self.selected[1] = 0;
            }
            _ => {}
        }
        true
    }

    fn open(&mut self, page: ScreenPage) {
        (self.page, self.stage, self.selected, self.is_listing_errors) = (page, None, [0; 2], false);
    }

    /// Returns the number of the selected row.
    fn selected(&self) -> usize {
        self.selected[usize::from(self.stage.is_some())]
    }

    /// Returns the index of the order of the rows.
    fn sorted(&self) -> usize {
        if self.stage.is_some() { ScreenPage::ALL.len() } else { self.page as usize }
    }

    fn select(&mut self, row: usize) {
        let rows = self.table().map_or(0, |table| table.rows.len());
        self.selected[usize::from(self.stage.is_some())] = row.min(rows.saturating_sub(1));
    }

    /// Sorts by the next or by the previous column. The original order of the rows comes after the last column and
    /// before the first column.
    fn sort(&mut self, is_next: bool) {
        let Some(table) = self.table() else { return };
        let columns = table.columns.len();
        // 0 is the original order, and 1 is the first column.
        let at = self.sorts[self.sorted()].map_or(0, |sort| sort.column + 1);
        let at = (at + if is_next { 1 } else { columns }) % (columns + 1);
        self.sorts[self.sorted()] = at.checked_sub(1).map(|column| table.order(column));
    }

    /// Returns the table of the page. Keys select and sort the rows of this table.
    fn table(&self) -> Option<ScreenTable> {
        let (model, live) = (&self.model, self.model.live()?);
        let mut table = match (&self.stage, self.page) {
            (Some(stage), _) => tables::details(model, find(&live.report, stage)?),
            (None, page) => match page {
                ScreenPage::Overview | ScreenPage::Stages => tables::stages(model, live),
                ScreenPage::Ports => tables::ports(model, live),
                ScreenPage::Workers => tables::workers(model, live),
                ScreenPage::Drops => tables::drops(model, live),
                ScreenPage::Latency => return None,
            },
        };
        table.sort(self.sorts[self.sorted()]);
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
        let problem = self.problem();
        let heights = [3, u16::from(problem.is_some())].map(Constraint::Length);
        let rows = [heights[0], heights[1], Constraint::Min(0), Constraint::Length(1)];
        let [head, below, body, foot] = Layout::vertical(rows).areas(frame.area());
        self.draw_head(frame, head);
        frame.render_widget(Paragraph::new(problem.unwrap_or_default()).style(self.style_if_bad(true)), below);
        self.draw_foot(frame, foot);
        match (self.model.live(), &self.stage, self.page) {
            (None, ..) => frame.render_widget(Paragraph::new("waiting for the first answer"), body),
            (Some(live), ..) if self.is_listing_errors => {
                let errors = match live.report.errors.len() {
                    0 => "there are no errors".to_owned(),
                    _ => live.report.errors.join("\n"),
                };
                frame.render_widget(Paragraph::new(errors).wrap(Wrap { trim: false }), body);
            }
            (Some(live), Some(stage), _) => self.draw_stage(frame, body, live, stage),
            (Some(live), None, ScreenPage::Overview) => self.draw_overview(frame, body, live),
            (Some(live), None, ScreenPage::Latency) => self.draw_latency(frame, body, live),
            (Some(_), None, _) => {
                if let Some(table) = self.table() {
                    self.draw_table(frame, body, &table, true);
                }
            }
        }
        if !self.is_utf8 {
            frame.buffer_mut().content.iter_mut().for_each(to_ascii);
        }
    }

    /// Returns the line below the names of the pages: why the program does not answer, or the first error of the run.
    fn problem(&self) -> Option<String> {
        if let Connection::Lost(why) = &self.connection {
            return Some(why.clone());
        }
        match &self.model.live()?.report.errors[..] {
            [] => None,
            [error] => Some(format!("error: {error}")),
            [error, others @ ..] => Some(format!("{} errors (key e): {error}", others.len() + 1)),
        }
    }

    fn draw_head(&self, frame: &mut Frame<'_>, area: Rect) {
        let mut lines = Vec::new();
        if let Some(live) = self.model.live() {
            let LiveStatistics { pid, version, config, report, .. } = live;
            let state = match &self.connection {
                Connection::Open if self.is_paused => " · paused",
                Connection::Open => "",
                Connection::Lost(_) => " · not connected",
            };
            let title = vec![
                Span::styled(file_name(config).to_owned(), Style::new().add_modifier(Modifier::BOLD)),
                Span::raw(format!("process {pid}")),
                Span::raw(format!("version {version}")),
                Span::raw(format!("{:.0} s{state}", report.duration_s)),
            ];
            lines.push(fitting(title, area.width));
            let [rx, tx] =
                [live.recent.rates.rate_rx_mpps, live.recent.rates.rate_mpps].map(|rate| PacketsPerSecond(rate * 1e6));
            let [rx_bits, tx_bits] =
                [live.recent.rates.rate_rx_gbps, live.recent.rates.rate_gbps].map(|rate| BitsPerSecond(rate * 1e9));
            let dropped = self.model.rate(|report| report.ledger.dropped);
            let unaccounted = report.ledger.unaccounted;
            let mut rates = Vec::new();
            if unaccounted != 0 {
                rates.push(Span::styled(format!("unaccounted {unaccounted}"), self.style_if_bad(true)));
            }
            rates.push(Span::raw(format!("in {rx} {rx_bits}")));
            rates.push(Span::raw(format!("out {tx} {tx_bits}")));
            let style = self.style_if_bad(dropped > 0.0);
            rates.push(Span::styled(format!("dropped {}", PacketsPerSecond(dropped)), style));
            lines.push(fitting(rates, area.width));
        } else {
            lines.extend([Line::raw("dataplane top"), Line::raw("")]);
        }
        lines.push(self.tabs());
        frame.render_widget(Paragraph::new(lines), area);
    }

    /// Returns the line with the names of the pages.
    fn tabs(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (number, (page, name)) in ScreenPage::ALL.into_iter().enumerate() {
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

    fn draw_overview(&self, frame: &mut Frame<'_>, area: Rect, live: &LiveStatistics) {
        // Half of the rows are for the stages.
        let most = usize::from(area.height / 5).max(2) - 1;
        let ports = tables::ports(&self.model, live).shortened(most, '2');
        let workers = tables::workers(&self.model, live).shortened(most, '3');
        let height = |table: &ScreenTable| Constraint::Length(table.rows.len() as u16 + 1);
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
        frame.render_widget(Paragraph::new(latency_line(&live.recent.latency_ns, latency.width)), latency);
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

    /// Draws a table. If not all columns fit, the last columns are missing, and the heading ends with a mark. A number
    /// is never cut.
    fn draw_table(&self, frame: &mut Frame<'_>, area: Rect, table: &ScreenTable, is_selectable: bool) {
        let sort = self.sorts[self.sorted()].filter(|_| is_selectable);
        let is_text = |column: usize| {
            let heading = table.columns[column].0;
            column == 0 || ["link", "use", "kind"].contains(&heading)
        };
        let widths: Vec<u16> = (0..table.columns.len()).map(|at| column_width(table, at)).collect();
        let first = widths[0];
        let all = widths.iter().map(|width| width + 1).sum::<u16>() - 1;
        let is_cut = all > area.width;
        // Room for the mark.
        let room = area.width.saturating_sub(if is_cut { 2 } else { 0 });
        let (mut shown, mut used) = (1, first);
        while let Some(width) = widths.get(shown)
            && used + 1 + width <= room
        {
            (shown, used) = (shown + 1, used + 1 + width);
        }
        let constraint = |at: usize| if at == 0 { Constraint::Min(0) } else { Constraint::Length(widths[at]) };
        let constraints = (0..shown).map(constraint).chain(is_cut.then_some(Constraint::Length(1)));
        let aligned =
            |column: usize, line: Line<'static>| Cell::from(if is_text(column) { line } else { line.right_aligned() });
        let heading = |(at, (heading, _)): (usize, &Column)| {
            let mark = match sort {
                Some(Sort { column, is_descending: true }) if column == at => "↓",
                Some(Sort { column, .. }) if column == at => "↑",
                _ => "",
            };
            aligned(at, Line::raw(format!("{heading}{mark}")))
        };
        let mark = is_cut.then(|| Cell::from("…"));
        let headings = Row::new(table.columns.iter().take(shown).enumerate().map(heading).chain(mark));
        let room = room - (used - first).min(room);
        let row = |row: &Vec<tables::Cell>| {
            let cells = row.iter().take(shown).enumerate();
            Row::new(cells.map(|(at, cell)| {
                let text = if at == 0 { shorten(&cell.text, room) } else { cell.text.clone() };
                aligned(at, Line::styled(text, self.style_if_bad(cell.is_bad)))
            }))
        };
        let grid = Grid::new(table.rows.iter().map(row), constraints)
            .header(headings.style(Style::new().add_modifier(Modifier::UNDERLINED)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        let selected = is_selectable.then(|| self.selected().min(table.rows.len().saturating_sub(1)));
        let mut state = TableState::new().with_selected(selected.filter(|_| !table.rows.is_empty()));
        frame.render_stateful_widget(grid, area, &mut state);
    }

    fn draw_latency(&self, frame: &mut Frame<'_>, area: Rect, live: &LiveStatistics) {
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

    fn draw_stage(&self, frame: &mut Frame<'_>, area: Rect, live: &LiveStatistics, stage: &str) {
        let Some(report) = find(&live.report, stage) else {
            frame.render_widget(Paragraph::new(format!("there is no stage {stage} any more")), area);
            return;
        };
        let parts = [Constraint::Length(1), Constraint::Length(5), Constraint::Min(0)];
        let [line, graph, rest] = Layout::vertical(parts).areas(area);
        let cost = CostReport::of_stage(&live.recent.costs, stage);
        let time = cost.map_or("–".to_owned(), |cost| Duration(cost.ns).to_string());
        let burst = cost.map_or("–".to_owned(), |cost| format!("{:.1}", cost.burst));
        let quarantined = match report.quarantined {
            0 => None,
            workers => Some(format!("quarantined on {workers} of {} workers", live.report.workers.len())),
        };
        let texts = [
            report.kind.clone(),
            format!("{} packets in {} batches", report.packets, report.batches),
            format!("time per packet {time}"),
            format!("burst {burst}"),
        ];
        let quarantined = quarantined.into_iter().map(|text| Span::styled(text, self.style_if_bad(true)));
        let texts = quarantined.chain(texts.into_iter().map(Span::raw)).collect();
        frame.render_widget(Paragraph::new(fitting(texts, line.width)), line);
        if let Some(history) = self.model.stage_history(stage) {
            self.draw_graph(frame, graph, "packets", history, Color::Green);
        }
        if let Some(details) = self.table() {
            self.draw_table(frame, rest, &details, true);
        }
    }
}

/// Returns the width of a column: room for the heading, for the mark of the order, and for the widest cell. The width
/// of the first column does not depend on its cells.
fn column_width(table: &ScreenTable, column: usize) -> u16 {
    let (heading, width) = table.columns[column];
    let cells = table.rows.iter().filter(|_| column > 0).filter_map(|row| row.get(column));
    let cells = cells.map(|cell| text_width(&cell.text)).max().unwrap_or(0);
    width.max(text_width(heading) + 1).max(cells)
}

/// Returns the number of columns of the terminal that a text needs.
fn text_width(text: &str) -> u16 {
    u16::try_from(Span::raw(text).width()).unwrap_or(u16::MAX)
}

/// Returns a text that needs at most `room` columns. A text that was cut ends with `…`.
fn shorten(text: &str, room: u16) -> String {
    if text_width(text) <= room {
        return text.to_owned();
    }
    let mut short = text.to_owned();
    while !short.is_empty() && text_width(&short) >= room {
        short.pop();
    }
    short + "…"
}

/// Replaces the characters of a cell that are not ASCII, for a terminal that cannot display these characters.
fn to_ascii(cell: &mut ratatui::buffer::Cell) {
    let symbol = match cell.symbol() {
        symbol if symbol.is_ascii() => return,
        "─" | "–" | "·" => "-",
        "↑" => "^",
        "↓" => "v",
        "←" => "<",
        "→" => ">",
        "µ" => "u",
        "…" => "~",
        "▁" | "▂" => "_",
        "▃" | "▄" => "-",
        "▅" | "▆" => "=",
        "▇" | "█" => "#",
        _ => "?",
    };
    cell.set_symbol(symbol);
}

/// Returns the file name of a path, because a long path would leave no room for the other values.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Joins the parts of a line that fit into `width` columns. The last parts may be missing, but no part is cut.
fn fitting(parts: Vec<Span<'static>>, width: u16) -> Line<'static> {
    let (mut line, width) = (Line::default(), usize::from(width));
    for part in parts {
        let separator = Span::raw(if line.spans.is_empty() { "" } else { " · " });
        if line.width() + separator.width() + part.width() > width {
            line.push_span(if line.width() + 2 <= width { " …" } else { "" });
            break;
        }
        line.push_span(separator);
        line.push_span(part);
    }
    line
}

fn latency_line(latency: &LatencyReport, width: u16) -> Line<'static> {
    if latency.count == 0 {
        return Line::raw("latency: no packet was measured");
    }
    let [p50, p90, p99, p999, max] =
        [latency.p50, latency.p90, latency.p99, latency.p999, latency.max].map(|nanos| Duration(nanos as f64));
    let parts = [("latency: p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)];
    fitting(parts.map(|(name, value)| Span::raw(format!("{name} {value}"))).to_vec(), width)
}
