//! Formats a [`Frame`], the activity of a process, as text: the output of `--once`.

use super::figures::{Frame, Level, Route, age, percent, rate, time};
use upshift_report::Table;

pub(super) fn text(frame: &Frame) -> String {
    let all = &frame.coroutines;
    let mut text = format!(
        "{} ({}): {}\nup {}, measured for {}\n\n",
        frame.pid,
        frame.name,
        frame.command,
        age(frame.uptime_ns),
        time(frame.interval_ns),
    );
    text.push_str(&format!(
        "coroutines: {} live = {} running + {} ready + {} blocked + {} suspended; {}/s spawned, {}/s exited, {} panicked\n\n",
        all.live,
        all.running,
        all.ready,
        all.blocked,
        all.suspended,
        rate(all.spawned_per_s),
        rate(all.exited_per_s),
        all.panicked,
    ));
    text.push_str(&vcpus(frame).to_string());
    text.push('\n');
    text.push_str(&levels(frame).to_string());
    text.push('\n');
    text.push_str(&polls(frame));
    if !frame.routes.is_empty() {
        text.push('\n');
        text.push_str(&routes(frame).to_string());
    }
    text
}

fn vcpus(frame: &Frame) -> Table {
    let head = [
        "vCPU",
        "busy",
        "polling",
        "parked",
        "polls/s",
        "stolen/s",
        "enters/s",
        "SQE/s",
        "CQE/s",
        "in flight",
    ];
    let mut table = Table::new("vCPUs", &head);
    for vcpu in frame.vcpus.iter().filter(|vcpu| vcpu.active) {
        table.row([
            vcpu.index.to_string(),
            percent(vcpu.busy),
            percent(vcpu.polling),
            percent(vcpu.parked),
            rate(vcpu.polls_per_s),
            rate(vcpu.stolen_per_s),
            rate(vcpu.enters_per_s),
            rate(vcpu.sqes_per_s),
            rate(vcpu.cqes_per_s),
            vcpu.in_flight.to_string(),
        ]);
    }
    table
}

fn levels(frame: &Frame) -> Table {
    let mut table = Table::new("Levels, 0 is the most urgent", &Level::COLUMNS);
    for level in &frame.levels {
        table.row(level.cells());
    }
    table
}

fn routes(frame: &Frame) -> Table {
    let heads: Vec<&str> = Route::COLUMNS
        .into_iter()
        .chain(["<route, or other name"])
        .collect();
    let mut table = Table::new("Routes and other work with a name", &heads);
    for route in &frame.routes {
        table.row(route.cells().into_iter().chain([route.name.clone()]));
    }
    table
}

fn polls(frame: &Frame) -> String {
    if frame.stall_limit_ns == 0 {
        return "Longest polls: not recorded (`Builder::stall_limit`)\n".into();
    }
    let title = format!(
        "Longest polls by name or place of spawn; {} polls took more than {}",
        frame.stalls,
        time(frame.stall_limit_ns)
    );
    let mut table = Table::new(
        &title,
        &[
            "longest",
            "level",
            "<coroutine",
            "<work, or where it was spawned",
        ],
    );
    for poll in &frame.longest_polls {
        let id = if poll.is_running {
            format!("{} (running)", poll.id)
        } else {
            poll.id.clone()
        };
        table.row([
            time(poll.longest_ns),
            poll.level.to_string(),
            id,
            poll.work_name().to_owned(),
        ]);
    }
    table.to_string()
}
