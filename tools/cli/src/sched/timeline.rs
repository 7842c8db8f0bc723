//! Draws a trace as SVG: a row for each task, a bar for each time it ran, and pale stripes for the
//! times at which ordinary threads could run.
//!
//! Long runs show their last [`MAX_BARS`] bars.

use std::fmt::Write as _;

use upshift_sched::{EventKind, Report, Trace};
use upshift_trace::escape;

/// Largest number of bars. More bars could not be distinguished, and would slow browsers down.
const MAX_BARS: usize = 4000;
/// Width of the drawing with the labels, in pixels.
const WIDTH: f64 = 1200.0;
/// Width of the labels, in pixels.
const LEFT: f64 = 160.0;
/// Height of a row, in pixels.
const ROW: f64 = 26.0;
/// Height of the title, in pixels.
const TOP: f64 = 40.0;
/// Colours that colour-blind readers can tell apart.
const COLOURS: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#8c6d31", "#555555",
];

/// A time for which a task ran on one CPU.
struct Bar {
    task: usize,
    cpu: usize,
    /// Beginning, in ns.
    from: u64,
    /// End, in ns.
    to: u64,
}

pub(super) fn svg(report: &Report, trace: &Trace) -> String {
    let (mut bars, open) = bars_and_open_times(report, trace);
    let omitted_bars = bars.len().saturating_sub(MAX_BARS);
    bars.drain(..omitted_bars);
    let begin = if omitted_bars > 0 { bars[0].from } else { 0 };
    let end = report.elapsed.max(begin + 1);
    let x = |at: u64| LEFT + (WIDTH - LEFT) * (at.max(begin) - begin) as f64 / (end - begin) as f64;
    let height = TOP + ROW * report.tasks.len() as f64 + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"8\" y=\"20\" font-size=\"14\">{}: {:.3} s to {:.3} s</text>\n",
        WIDTH + 20.0,
        escape(report.policy),
        begin as f64 / 1e9,
        end as f64 / 1e9,
    );
    let bottom = TOP + ROW * report.tasks.len() as f64;
    for &(from, to) in open.iter().filter(|(_, to)| *to > begin) {
        let _ = writeln!(
            svg,
            "<rect x=\"{:.2}\" y=\"{TOP}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"#eee\"><title>open to ordinary \
             threads</title></rect>",
            x(from),
            (x(to) - x(from)).max(0.1),
            bottom - TOP,
        );
    }
    for (row, task) in report.tasks.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        let _ = writeln!(
            svg,
            "<text x=\"8\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" \
             fill=\"#555\">{:.1} %</text>",
            y + 17.0,
            escape(&task.label),
            LEFT - 8.0,
            y + 17.0,
            100.0 * task.share,
        );
    }
    for bar in &bars {
        let _ = writeln!(
            svg,
            "<rect x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{:.1}\" fill=\"{}\"><title>CPU {}, {:.3} ms to {:.3} \
             ms</title></rect>",
            x(bar.from),
            TOP + ROW * bar.task as f64 + 4.0,
            (x(bar.to) - x(bar.from)).max(0.1),
            ROW - 8.0,
            COLOURS[bar.task % COLOURS.len()],
            bar.cpu,
            bar.from as f64 / 1e6,
            bar.to as f64 / 1e6,
        );
    }
    for tick in 0..=10u64 {
        let at = begin + (end - begin) * tick / 10;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{:.1} ms</text>",
            x(at),
            bottom + 20.0,
            at as f64 / 1e6,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the bars in the order of their ends, and the times at which the CPUs were open to
/// ordinary threads.
fn bars_and_open_times(report: &Report, trace: &Trace) -> (Vec<Bar>, Vec<(u64, u64)>) {
    let mut bars = Vec::new();
    let mut open = Vec::new();
    let mut opened = None;
    let mut front: Vec<(usize, usize, u64)> = Vec::new();
    let mut finish = |front: &mut Vec<(usize, usize, u64)>,
                      at: u64,
                      has_ended: &dyn Fn(usize, usize) -> bool| {
        front.retain(|&(cpu, task, from)| {
            let ends = has_ended(cpu, task);
            if ends {
                bars.push(Bar {
                    task,
                    cpu,
                    from,
                    to: at,
                });
            }
            !ends
        });
    };
    for event in trace.events() {
        match event.kind {
            EventKind::Front { cpu, task } => {
                finish(&mut front, event.at, &|other, _| other == cpu);
                front.extend(task.map(|task| (cpu, task.0, event.at)));
            }
            EventKind::Ended(task) => finish(&mut front, event.at, &|_, other| other == task.0),
            EventKind::Opened => opened = Some(event.at),
            EventKind::Closed => open.extend(opened.take().map(|from| (from, event.at))),
        }
    }
    // A truncated trace does not contain the end.
    let end = match (trace.lost_events(), trace.events().last()) {
        (1.., Some(last)) => last.at,
        _ => report.elapsed,
    };
    finish(&mut front, end, &|_, _| true);
    open.extend(opened.map(|from| (from, end)));
    (bars, open)
}
