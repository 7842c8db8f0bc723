//! Formats a trace as a timeline in text, or as JSON.

use std::fmt::Write;

use crate::trace::{Kind, Record, STATES, Trace};

/// Width of a lane, in characters.
const LANE: usize = 100;
/// Width of the column of a hart, in characters.
const COLUMN: usize = 34;

/// Converts ticks of a trace to microseconds.
pub(crate) fn micros(trace: &Trace, ticks: u64) -> f64 {
    ticks as f64 * 1e6 / trace.ticks_per_second.max(1) as f64
}

/// Returns a lane for each hart, then every change of state in the column of its hart.
pub(crate) fn text(program: &str, trace: &Trace) -> String {
    let mut text = String::new();
    let first = trace.records.first().map_or(0, |record| record.time);
    let last = trace.records.last().map_or(0, |record| record.time);
    let _ = writeln!(
        text,
        "trace of `{program}`: {} harts, {} changes of state, {:.1} µs; a tick is {} ns",
        trace.harts,
        trace.records.len(),
        micros(trace, last - first),
        1_000_000_000 / trace.ticks_per_second.max(1),
    );
    if trace.lost != 0 {
        let lost = trace.lost;
        let _ = writeln!(text, "{lost} more are lost: --records keeps more of them");
    }
    let states: Vec<String> = STATES
        .iter()
        .map(|(letter, name)| format!("{letter} {name}"))
        .collect();
    let _ = writeln!(text, "states: {}", states.join(", "));
    let _ = writeln!(
        text,
        "\nlanes, {:.1} µs a character: u user coroutine, t thread otherwise, k kernel \
         coroutine,\n  s switching, . idle",
        micros(trace, last - first) / LANE as f64
    );
    for hart in 0..trace.harts {
        let _ = writeln!(text, "hart {hart} |{}|", lane(trace, hart, first, last));
    }
    let _ = write!(text, "\n{:>12} {:>11} ", "µs", "tick");
    for hart in 0..trace.harts {
        let _ = write!(
            text,
            "| {:<COLUMN$}",
            format!("hart {hart}: state level subject")
        );
    }
    text.push('\n');
    for record in &trace.records {
        let _ = write!(
            text,
            "{:>12.1} {:>11} ",
            micros(trace, record.time - first),
            record.time
        );
        for _ in 0..record.hart {
            let _ = write!(text, "| {:COLUMN$}", "");
        }
        let _ = writeln!(
            text,
            "| {} {:>2} {}",
            record.state, record.level, record.subject
        );
    }
    text
}

/// Returns the activity of a hart after a change of state.
fn activity(before: char, record: &Record) -> char {
    match (record.kind, record.state) {
        (Kind::User, 'R') => 'u',
        (Kind::User, 'B' | 'E') => 't',
        (Kind::User, 'r') => before,
        (Kind::Thread, 'R') => 't',
        (Kind::Thread, 'I' | 'X') => 's',
        (Kind::Kernel, 'R') if !record.is_switching => 'k',
        (Kind::Kernel, 'R') if record.level == 63 => '.',
        (Kind::Kernel, 'R') => 's',
        (Kind::Kernel, 'B' | 'E') => 's',
        _ => before,
    }
}

/// Returns the activities of a hart as tuples of start, end and the letter that [`activity`]
/// returns.
pub(crate) fn spans(trace: &Trace, hart: usize, first: u64, last: u64) -> Vec<(u64, u64, char)> {
    let mut spans = Vec::new();
    let (mut since, mut now) = (first, '.');
    for record in trace.records.iter().filter(|record| record.hart == hart) {
        let next = activity(now, record);
        if next != now {
            spans.push((since, record.time, now));
            (since, now) = (record.time, next);
        }
    }
    spans.push((since, last, now));
    spans
}

/// Draws the lane of a hart: each character shows the activity that took the most time in its
/// interval.
fn lane(trace: &Trace, hart: usize, first: u64, last: u64) -> String {
    let spans = spans(trace, hart, first, last);
    let whole = (last - first).max(1) as f64;
    let edge = |n: usize| first as f64 + whole * n as f64 / LANE as f64;
    let longest_activity = |n: usize| {
        let share = |wanted: char| -> f64 {
            let overlap = |(begin, end, activity): &(u64, u64, char)| {
                if *activity == wanted {
                    ((*end as f64).min(edge(n + 1)) - (*begin as f64).max(edge(n))).max(0.0)
                } else {
                    0.0
                }
            };
            spans.iter().map(overlap).sum()
        };
        let all = ['.', 's', 'k', 't', 'u'];
        all.into_iter()
            .max_by(|a, b| share(*a).total_cmp(&share(*b)))
            .unwrap_or('.')
    };
    (0..LANE).map(longest_activity).collect()
}

/// Returns an array with an object for each change of state.
pub(crate) fn json(trace: &Trace) -> String {
    let object = |record: &Record| {
        let kind = match record.kind {
            Kind::Kernel => "kernel coroutine",
            Kind::Thread => "thread",
            Kind::User => "user coroutine",
        };
        let state = STATES.iter().find(|(letter, _)| *letter == record.state);
        format!(
            "  {{\"hart\": {}, \"tick\": {}, \"kind\": \"{kind}\", \"state\": \"{}\", \
             \"level\": {}, \"process\": {}, \"thread\": {}, \"id\": {}, \"who\": \"{}\"}}",
            record.hart,
            record.time,
            state.map_or("unknown", |(_, name)| name),
            record.level,
            record.process,
            record.thread,
            record.id,
            record.subject,
        )
    };
    let objects: Vec<String> = trace.records.iter().map(object).collect();
    format!("[\n{}\n]", objects.join(",\n"))
}
