//! Draws the page of a process, the help, and the message for a window that is too small. The
//! functions only fill the terminal's cells and have no other effect.

use ratatui::Frame as Canvas;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table};

use super::figures::{Frame, Level, Route, Vcpu, age, keep_end, percent, rate, time};
use super::settings::{Bottom, Settings, Sort};

/// Smallest width in which a page is drawn.
const WIDTH: u16 = 50;
/// Smallest height in which a page is drawn.
const HEIGHT: u16 = 12;
/// Width of the columns of the longest polls except the last one, including a space after each.
const POLL_COLUMNS: u16 = 9 + 6 + 7 + 14 + 4;
/// Width of the columns of routes except the last one, including a space after each.
const ROUTE_COLUMNS: u16 = 5 + 6 + 5 * 7 + 7;
/// Width from which the line of a vCPU includes its rate of polls.
const WIDE: usize = 100;
/// Width of a full bar.
const BAR: usize = 20;

pub(super) fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

pub(super) fn dim() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

pub(super) fn head() -> Style {
    Style::new().fg(Color::Black).bg(Color::Cyan)
}

/// Returns whether the page fits; if it does not, draws the reason.
pub(super) fn check_size(to: &mut Canvas<'_>) -> bool {
    let area = to.area();
    if area.width >= WIDTH && area.height >= HEIGHT {
        return true;
    }
    let text = format!(
        "{}x{}: too small\n{WIDTH}x{HEIGHT} is needed\nq quits",
        area.width, area.height
    );
    to.render_widget(Paragraph::new(text), area);
    false
}

/// Draws a message until the first interval has passed.
pub(super) fn first_interval(to: &mut Canvas<'_>, pid: u32) {
    let text = format!("looking at process {pid} …");
    to.render_widget(Paragraph::new(text), to.area());
}

pub(super) fn process(to: &mut Canvas<'_>, frame: &Frame, settings: &Settings) {
    let area = to.area();
    let vcpus: Vec<&Vcpu> = frame.vcpus.iter().filter(|vcpu| vcpu.active).collect();
    let vcpu_lines = (vcpus.len() as u16).min(area.height / 4).max(1);
    let rest = area.height.saturating_sub(vcpu_lines + 5);
    let level_lines = (frame.levels.len() as u16 + 1).clamp(2, (rest / 2).max(2));
    let [title, states, bars, _, levels, polls, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(2),
        Constraint::Length(vcpu_lines),
        Constraint::Length(1),
        Constraint::Length(level_lines),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(area);
    draw_title(to, title, frame, settings);
    draw_states(to, states, frame);
    let width = usize::from(area.width);
    let lines: Vec<Line<'_>> = vcpus.iter().map(|vcpu| bar(vcpu, width)).collect();
    to.render_widget(Paragraph::new(lines), bars);
    draw_levels(to, levels, frame, settings.sort);
    match settings.bottom {
        Bottom::Polls => draw_polls(to, polls, frame, settings.scroll),
        Bottom::Routes => draw_routes(to, polls, frame, settings.scroll),
    }
    footer(to, keys, settings);
}

fn draw_title(to: &mut Canvas<'_>, area: Rect, frame: &Frame, settings: &Settings) {
    let left = format!("upshift top  {}  {}", frame.pid, frame.command);
    let right = format!(
        "{}up {}  every {}",
        if settings.paused { "PAUSED  " } else { "" },
        age(frame.uptime_ns),
        time(u64::try_from(settings.interval.as_nanos()).unwrap_or(u64::MAX)),
    );
    let [begin, end] = Layout::horizontal([
        Constraint::Min(0),
        Constraint::Length(right.chars().count() as u16 + 1),
    ])
    .areas(area);
    to.render_widget(Paragraph::new(left).style(bold()), begin);
    to.render_widget(Paragraph::new(right).alignment(Alignment::Right), end);
}

fn draw_states(to: &mut Canvas<'_>, area: Rect, frame: &Frame) {
    let all = &frame.coroutines;
    let states = format!(
        "coroutines {}: {} running  {} ready  {} blocked  {} suspended   {}/s spawned",
        all.live,
        all.running,
        all.ready,
        all.blocked,
        all.suspended,
        rate(all.spawned_per_s),
    );
    let mut more = format!(
        "{} panicked   {} stalls   blocking: {} threads, {} queued",
        all.panicked, frame.stalls, all.blocking_threads, all.blocking_queued
    );
    if frame.preemption.vcpus != 0 {
        more.push_str(&format!(
            "   preempted {}/s, {} looks/s",
            rate(frame.preemption.suspensions_per_s),
            rate(frame.preemption.looks_per_s),
        ));
    }
    let lines = vec![Line::from(states), Line::from(Span::styled(more, dim()))];
    to.render_widget(Paragraph::new(lines), area);
}

fn bar(vcpu: &Vcpu, width: usize) -> Line<'_> {
    let cells = |share: f64| (share * BAR as f64).round() as usize;
    let polling = cells(vcpu.polling).min(BAR);
    let busy = cells(vcpu.busy).clamp(polling, BAR);
    let color = match vcpu.busy {
        busy if busy > 0.9 => Color::Red,
        busy if busy > 0.6 => Color::Yellow,
        _ => Color::Green,
    };
    let name = format!("vCPU {:<3}[", vcpu.index);
    let mut rates = format!("{}] {:>7}", " ".repeat(BAR - busy), percent(vcpu.busy));
    if width >= WIDE {
        rates.push_str(&format!("  {:>6} polls/s", rate(vcpu.polls_per_s)));
    }
    let running = match (vcpu.running, vcpu.work.as_ref().or(vcpu.location.as_ref())) {
        (Some(level), Some(work)) => {
            let since = format!("  level {level} for {}: ", time(vcpu.poll_age_ns));
            let cells = [&name, &rates, &since].map(|text| text.chars().count());
            let left = width.saturating_sub(busy + cells.iter().sum::<usize>());
            format!("{since}{}", keep_end(work, left))
        }
        _ => format!("  {} in flight", vcpu.in_flight),
    };
    Line::from(vec![
        Span::raw(name),
        Span::styled("|".repeat(polling), Style::new().fg(color)),
        Span::styled("|".repeat(busy - polling), Style::new().fg(Color::Blue)),
        Span::raw(rates),
        Span::styled(running, dim()),
    ])
}

fn sorted(levels: &[Level], sort: Sort) -> Vec<&Level> {
    let mut rows: Vec<&Level> = levels.iter().collect();
    match sort {
        // Rows arrive in the order of levels.
        Sort::Level => {}
        Sort::Cpu => rows.sort_by(|a, b| b.cpu.total_cmp(&a.cpu)),
        Sort::Polls => rows.sort_by(|a, b| b.polls_per_s.total_cmp(&a.polls_per_s)),
        Sort::Wait => rows.sort_by_key(|level| std::cmp::Reverse(level.wait_p99_ns)),
    }
    rows
}

fn right(text: impl Into<String>) -> Cell<'static> {
    Cell::from(Line::from(text.into()).alignment(Alignment::Right))
}

fn draw_levels(to: &mut Canvas<'_>, area: Rect, frame: &Frame, sort: Sort) {
    let title = Row::new(Level::COLUMNS.map(|name| {
        let marked = name == sort.column();
        right(if marked {
            format!("▼{name}")
        } else {
            name.into()
        })
    }));
    let rows = sorted(&frame.levels, sort).into_iter().map(|level| {
        let occupied = frame.occupied >> level.level & 1 == 1;
        let style = if occupied { bold() } else { Style::new() };
        Row::new(level.cells().map(right)).style(style)
    });
    let widths = [6, 5, 3, 8, 7, 8, 9, 7].map(Constraint::Length);
    let table = Table::new(rows, widths).header(title.style(head()));
    to.render_widget(table, area);
}

fn draw_polls(to: &mut Canvas<'_>, area: Rect, frame: &Frame, scroll: usize) {
    let [_, area] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    if frame.stall_limit_ns == 0 {
        let text = "longest polls: not recorded (`Builder::stall_limit`)";
        to.render_widget(Paragraph::new(text).style(dim()), area);
        return;
    }
    let title = Row::new([
        right("longest"),
        right("level"),
        right("timed"),
        Cell::from("coroutine"),
        Cell::from("work, or where it was spawned"),
    ]);
    let width = usize::from(area.width.saturating_sub(POLL_COLUMNS));
    let scroll = scroll.min(frame.longest_polls.len().saturating_sub(1));
    let rows = frame.longest_polls.iter().skip(scroll).map(|poll| {
        let mut style = Style::new();
        if poll.longest_ns >= frame.stall_limit_ns {
            style = style.fg(Color::Red);
        }
        let id = if poll.is_running {
            format!("{} ▶", poll.id)
        } else {
            poll.id.clone()
        };
        Row::new([
            right(time(poll.longest_ns)),
            right(poll.level.to_string()),
            right(poll.watched.to_string()),
            Cell::from(id),
            Cell::from(keep_end(poll.work_name(), width)),
        ])
        .style(style)
    });
    let widths = [
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(7),
        Constraint::Length(14),
        Constraint::Min(10),
    ];
    to.render_widget(Table::new(rows, widths).header(title.style(head())), area);
}

fn draw_routes(to: &mut Canvas<'_>, area: Rect, frame: &Frame, scroll: usize) {
    let [_, area] = Layout::vertical([Constraint::Length(1), Constraint::Min(1)]).areas(area);
    if frame.routes.is_empty() {
        let text = "no work has a name (`upshift::axum::NameRoutes`, `upshift::named`)";
        to.render_widget(Paragraph::new(text).style(dim()), area);
        return;
    }
    let heads = Route::COLUMNS.map(right).into_iter();
    let title = Row::new(heads.chain([Cell::from("route, or other name")]));
    let width = usize::from(area.width.saturating_sub(ROUTE_COLUMNS));
    let scroll = scroll.min(frame.routes.len() - 1);
    let rows = frame.routes.iter().skip(scroll).map(|route| {
        let cells = route.cells().map(right).into_iter();
        let mut style = Style::new();
        if frame.stall_limit_ns != 0 && route.longest_poll_ns >= frame.stall_limit_ns {
            style = style.fg(Color::Red);
        }
        Row::new(cells.chain([Cell::from(keep_end(&route.name, width))])).style(style)
    });
    let widths = [5, 6, 7, 7, 7, 7, 7].map(Constraint::Length);
    let widths = widths.into_iter().chain([Constraint::Min(10)]);
    to.render_widget(Table::new(rows, widths).header(title.style(head())), area);
}

pub(super) fn footer(to: &mut Canvas<'_>, area: Rect, settings: &Settings) {
    let pause = if settings.paused { "go on" } else { "pause" };
    let text =
        format!("q quit  p {pause}  s sort  r routes  +/- interval  l list  m machine  ? help");
    to.render_widget(Paragraph::new(text).style(dim()), area);
}

const HELP: [&str; 23] = [
    "q, Esc    quit             p, space  pause and go on",
    "s         sort levels      + -       longer, shorter interval",
    "l         list             m         machine (upshift daemon)",
    "r         routes, or the longest polls",
    "↑ ↓       scroll, choose   Enter     look at the chosen process",
    "",
    "vCPU      green to red: polls; blue: scheduling and ring",
    "ready     coroutines that wait for a vCPU, with suspended ones",
    "run       vCPUs that poll a coroutine of this level now",
    "CPU       time in polls, of one CPU",
    "wait      from ready to polled, in this interval",
    "starved   time in which the level had something ready and no pick",
    "",
    "longest   the longest poll of the coroutines spawned in a place;",
    "          red: over the stall limit; ▶: still running. Short polls are",
    "          a sample: the longer a poll, the likelier it is timed.",
    "timed     polls of this name or place that were timed",
    "routes    work with a name; active: begun and not ended;",
    "          p50, p99: from the first poll to the end",
    "",
    "bold      levels with something ready or running",
    "",
    "any key closes this",
];

pub(super) fn help(to: &mut Canvas<'_>) {
    let area = to.area();
    let width = 68.min(area.width);
    let height = (HELP.len() as u16 + 2).min(area.height);
    let middle = Rect {
        x: (area.width - width) / 2,
        y: (area.height - height) / 2,
        width,
        height,
    };
    to.render_widget(Clear, middle);
    let text = Paragraph::new(HELP.join("\n"));
    to.render_widget(text.block(Block::bordered().title(" upshift top ")), middle);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::figures::{Coroutines, Poll, Preemption};
    use super::*;

    const PLACE: &str = "/home/user/programs/shop/dependencies/of-the-shop/version-1/crate-1.2.3/src/http/server.rs:191:17";

    fn frame() -> Frame {
        Frame {
            pid: 4711,
            name: "shop".into(),
            command: "/usr/local/bin/shop --listen 127.0.0.1:8080".into(),
            version: "0.1.0".into(),
            uptime_ns: 3_600_000_000_000,
            interval_ns: 1_000_000_000,
            coroutines: Coroutines {
                live: 120,
                ready: 3,
                running: 1,
                blocked: 116,
                suspended: 0,
                spawned_per_s: 812.0,
                exited_per_s: 812.0,
                panicked: 0,
                blocking_threads: 2,
                blocking_queued: 0,
            },
            occupied: 1 << 40,
            levels: vec![Level {
                level: 40,
                ready: 3,
                running: 1,
                polls_per_s: 12_345.0,
                cpu: 0.912,
                starve: 0.02,
                wait_p50_ns: 12_000,
                wait_p99_ns: 250_000_000,
            }],
            vcpus: vec![Vcpu {
                index: 0,
                active: true,
                busy: 0.95,
                polling: 0.9,
                parked: 0.05,
                spin: 0.0,
                polls_per_s: 12_345.0,
                stolen_per_s: 0.0,
                suspensions_per_s: 0.0,
                enters_per_s: 99.0,
                sqes_per_s: 99.0,
                cqes_per_s: 99.0,
                in_flight: 7,
                overflows: 0,
                running: Some(40),
                work: None,
                location: Some(PLACE.into()),
                poll_age_ns: 1_230_000,
            }],
            preemption: Preemption {
                vcpus: 0,
                suspended: 0,
                suspensions_per_s: 0.0,
                looks_per_s: 0.0,
                useless_per_s: 0.0,
            },
            stall_limit_ns: 10_000_000,
            stalls: 4,
            longest_polls: vec![Poll {
                work: None,
                location: PLACE.into(),
                id: "3.1".into(),
                level: 40,
                longest_ns: 44_800_000,
                is_running: true,
                watched: 1234,
            }],
            routes: vec![Route {
                name: "GET /users/{id}/orders".into(),
                level: 40,
                under_way: 12,
                ended_per_s: 812.0,
                cpu: 1.234,
                p50_ns: 812_000,
                p99_ns: 44_800_000,
                longest_poll_ns: 44_800_000,
            }],
        }
    }

    fn page(width: u16, bottom: Bottom) -> Vec<String> {
        let settings = Settings {
            interval: Duration::from_secs(1),
            paused: false,
            help: false,
            sort: Sort::Level,
            bottom,
            scroll: 0,
        };
        let mut terminal = Terminal::new(TestBackend::new(width, 24)).unwrap();
        terminal
            .draw(|to| process(to, &frame(), &settings))
            .unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        (0..24).map(row).collect()
    }

    #[test]
    fn the_end_of_a_source_location_is_shown_at_80_and_100_columns() {
        for width in [80, 100] {
            let page = page(width, Bottom::Polls);
            let shown = |row: &String| row.trim_end().ends_with("server.rs:191:17");
            // The vCPU's current poll and the longest poll.
            assert_eq!(page.iter().filter(|row| shown(row)).count(), 2, "{page:#?}");
            let keys = page.last().unwrap();
            assert!(
                keys.contains("r routes") && keys.contains("? help"),
                "{keys}"
            );
        }
    }

    #[test]
    fn routes_show_all_columns_at_80_and_100_columns() {
        for width in [80, 100] {
            let page = page(width, Bottom::Routes);
            let row = page.iter().find(|row| row.contains("GET ")).unwrap();
            let cells: Vec<&str> = row.split_whitespace().collect();
            assert_eq!(
                cells.join(" "),
                "40 12 812 123.4 % 812 µs 44.8 ms 44.8 ms GET /users/{id}/orders"
            );
        }
    }
}
