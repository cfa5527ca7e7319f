//! The live view.

use std::io::{self, IsTerminal};
use std::path::Path;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row as Cells, Table};

use super::rates::{Row, rows};
use crate::failure::{Failure, Result};
use crate::stats::{Collected, collect};

/// The displayed data.
struct View {
    last: (Instant, Collected),
    rows: Vec<Row>,
    /// The sort column.
    column: usize,
}

impl View {
    fn look(&mut self, directory: &Path) {
        let now = (Instant::now(), collect(directory));
        self.rows = rows(&self.last.1, &now.1, now.0 - self.last.0);
        self.last = now;
        self.sort();
    }

    fn sort(&mut self) {
        let column = self.column;
        self.rows.sort_by(|a, b| {
            let larger = b.weight(column).total_cmp(&a.weight(column));
            larger.then_with(|| (a.pid, &a.address).cmp(&(b.pid, &b.address)))
        });
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let [head, table] = Layout::vertical([Constraint::Length(2), Constraint::Min(1)]).areas(frame.area());
        let processes = self.last.1.processes.len();
        let mut line =
            format!("ofi top: {processes} processes, {} endpoints; q ends, s sorts", self.rows.len());
        if processes == 0 {
            line.push_str(": no process exports its statistics (FI_EXPORT_STATISTICS=1)");
        }
        if let Some(problem) = self.last.1.problems.first() {
            line.push_str(&format!("; {problem}"));
        }
        frame.render_widget(Line::from(line), head);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let header = Row::COLUMNS.iter().enumerate().map(|(place, name)| {
            if place == self.column { format!("{name} v") } else { (*name).to_string() }
        });
        let widths = [8, 16, 9, 30, 8, 11, 11, 11, 11, 11, 11, 12, 13, 11].map(Constraint::Max);
        let body = self.rows.iter().map(|row| Cells::new(row.cells()));
        frame.render_widget(Table::new(body, widths).header(Cells::new(header).style(bold)), table);
    }
}

/// Shows the view until q, Escape or Ctrl-C.
///
/// # Errors
/// Standard output is not a terminal, or cannot be used as one.
pub fn run(directory: &Path, interval: Duration) -> Result<()> {
    if !io::stdout().is_terminal() {
        return Err(Failure::Usage("standard output is not a terminal: use --once, or ofi stats".into()));
    }
    let doing = |error| Failure::system("using the terminal", error);
    let mut terminal = ratatui::try_init().map_err(doing)?;
    let result = show(&mut terminal, directory, interval).map_err(doing);
    ratatui::restore();
    result
}

fn show(terminal: &mut DefaultTerminal, directory: &Path, interval: Duration) -> io::Result<()> {
    let mut view = View { last: (Instant::now(), collect(directory)), rows: Vec::new(), column: 6 };
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        let next = view.last.0 + interval;
        if !event::poll(next.saturating_duration_since(Instant::now()))? {
            view.look(directory);
            continue;
        }
        let Event::Key(key) = event::read()? else { continue };
        match key.code {
            _ if key.kind != KeyEventKind::Press => {}
            KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
            KeyCode::Char('s') => {
                view.column = if view.column + 1 == Row::COLUMNS.len() { 4 } else { view.column + 1 };
                view.sort();
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::stats::{Endpoint, Process, Statistic};

    #[test]
    fn a_row_for_each_endpoint_and_advice_where_there_is_none() {
        let mut view = View { last: (Instant::now(), Collected::default()), rows: Vec::new(), column: 6 };
        let mut terminal = Terminal::new(TestBackend::new(200, 5)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        assert!(terminal.backend().to_string().contains("FI_EXPORT_STATISTICS=1"));
        let endpoint = |address: &str, posted| Endpoint {
            provider: "udp".into(),
            domain: "lo".into(),
            kind: "RDM".into(),
            address: address.into(),
            statistics: vec![Statistic { name: "rx_posted".into(), value: posted, help: String::new() }],
            histograms: Vec::new(),
        };
        let process = Process {
            pid: 4711,
            program: "server".into(),
            endpoints: vec![endpoint("first", 1), endpoint("second", 2)],
        };
        let look = Collected { processes: vec![process], problems: Vec::new() };
        view.rows = rows(&look, &look, Duration::from_secs(1));
        view.last.1 = look;
        view.column = 11;
        view.sort();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let screen = terminal.backend().to_string();
        let (first, second) = (screen.find("first").unwrap(), screen.find("second").unwrap());
        assert!(second < first && screen.contains("rx posted v"), "{screen}");
        // A terminal of any size must work.
        for (width, height) in [(1, 1), (20, 2), (500, 100)] {
            Terminal::new(TestBackend::new(width, height)).unwrap().draw(|frame| view.draw(frame)).unwrap();
        }
    }
}
