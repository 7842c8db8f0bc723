//! Draws the list of processes, and the page of the whole machine.

use ratatui::Frame as Canvas;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::widgets::{Paragraph, Row, Table, Wrap};

use super::attach::{NO_PROCESS, Peer};
use super::draw::{bold, dim, footer, head};
use super::figures::age;
use super::machine::{CPU_COLUMNS, Machine, VCPU_COLUMNS, levels};
use super::settings::Settings;

pub(super) fn choose(to: &mut Canvas<'_>, peers: &[Peer], has_machine: bool, selected: usize) {
    let [title, list, keys] = Layout::vertical([
        Constraint::Length(2),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(to.area());
    to.render_widget(
        Paragraph::new("upshift top: which process?").style(bold()),
        title,
    );
    if peers.is_empty() && !has_machine {
        to.render_widget(Paragraph::new(NO_PROCESS).wrap(Wrap { trim: true }), list);
    } else {
        let style = |row: usize| {
            if row == selected {
                Style::new().add_modifier(Modifier::REVERSED)
            } else {
                Style::new()
            }
        };
        let mut rows: Vec<Row<'_>> = peers
            .iter()
            .enumerate()
            .map(|(row, peer)| {
                Row::new([peer.pid.to_string(), peer.command.clone()]).style(style(row))
            })
            .collect();
        if has_machine {
            let row = Row::new(["daemon", "the whole machine"]);
            rows.push(row.style(style(peers.len())));
        }
        // The selected row stays visible.
        let first = (selected + 1).saturating_sub(usize::from(list.height).saturating_sub(1));
        let rows = rows.into_iter().skip(first);
        let widths = [Constraint::Length(9), Constraint::Min(10)];
        let title = Row::new(["pid", "command"]).style(head());
        to.render_widget(Table::new(rows, widths).header(title), list);
    }
    to.render_widget(
        Paragraph::new("↑ ↓ choose  Enter look  q quit  ? help").style(dim()),
        keys,
    );
}

pub(super) fn machine(
    to: &mut Canvas<'_>,
    now: &Machine,
    before: Option<&Machine>,
    settings: &Settings,
) {
    let cpu_lines = (now.cpus.len() as u16 + 1).min(to.area().height / 3);
    let [title, cpus, _, processes, keys] = Layout::vertical([
        Constraint::Length(3),
        Constraint::Length(cpu_lines),
        Constraint::Length(1),
        Constraint::Min(2),
        Constraint::Length(1),
    ])
    .areas(to.area());
    let text = format!(
        "upshift daemon {}, up {}: {}{}\n{} registrations, {} refused, {} ejected   levels {}",
        now.pid,
        age(now.uptime_ms.saturating_mul(1_000_000)),
        now.mode(),
        if settings.paused { "   PAUSED" } else { "" },
        now.registrations,
        now.refused,
        now.ejected,
        levels(now.bitmap),
    );
    to.render_widget(Paragraph::new(text), title);
    let plain = |name: &'static str| name.trim_start_matches('<');
    let rows = now.cpu_cells(before).map(Row::new);
    let widths = [5, 11, 11, 6, 16]
        .map(Constraint::Length)
        .into_iter()
        .chain([Constraint::Min(8)]);
    let title = Row::new(CPU_COLUMNS.map(plain)).style(head());
    to.render_widget(Table::new(rows, widths).header(title), cpus);
    let lines = now.vcpu_cells().map(|(cells, is_winner)| {
        let style = if is_winner { bold() } else { Style::new() };
        Row::new(cells).style(style)
    });
    let widths = [8, 7, 8, 4, 8, 5, 9, 16]
        .map(Constraint::Length)
        .into_iter()
        .chain([Constraint::Min(8)]);
    let title = Row::new(VCPU_COLUMNS.map(plain)).style(head());
    let rows = lines.skip(settings.scroll);
    to.render_widget(Table::new(rows, widths).header(title), processes);
    footer(to, keys, settings);
}
