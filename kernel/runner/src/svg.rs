//! Draws a trace over time: a row for each hart, then a row for each thread and coroutine.
//!
//! ```text
//!  hart 0              ▆▆▆▆░░▆▆▆▆▆▆      user coroutine, thread, kernel, idle
//!  coroutine 2 of 256  ▁▁▆▆▁▁▁▁▆▆▆▆      ready, running, blocked, suspended
//!                      0.00 µs    250 µs
//! ```
//!
//! The tooltip of a mark shows its time, level and state.

use std::collections::HashMap;
use std::fmt::Write;

use upshift_report::plot::{COLOURS, DARK, SOFT};
use upshift_report::{escape, number};

use crate::timeline::{micros, spans};
use crate::trace::{Kind, Record, STATES, Trace};

/// Width of the part that is drawn over time.
const WIDTH: f64 = 900.0;
/// Width of the names beside it.
const NAMES: f64 = 190.0;
/// Right margin: half the width of a time label.
const MARGIN: f64 = 40.0;
/// Height of a row.
const ROW: f64 = 20.0;
/// Height of a mark in a row.
const MARK: f64 = 12.0;
/// Height of the title and the legends.
const TOP: f64 = 84.0;
/// Maximum number of rows of threads and coroutines; the rows with the most changes are kept.
const MAX_ROWS: usize = 60;
/// Number of intervals between the marks of the time axis.
const TICKS: u32 = 6;

/// Colours of the activities of a hart, by the letters of the text lanes.
const ACTIVITIES: [(char, &str, &str); 5] = [
    ('u', "user coroutine", COLOURS[0]),
    ('t', "thread otherwise", COLOURS[2]),
    ('k', "kernel coroutine", COLOURS[3]),
    ('s', "switching", "#b8960c"),
    ('.', "idle", "#eaeef2"),
];

const STATE_COLOURS: [(char, &str); 7] = [
    ('C', "#eaeef2"),
    ('r', "#d9730d"),
    ('R', "#1a7f37"),
    ('B', "#d5dae0"),
    ('I', "#b3123f"),
    ('X', "#8250df"),
    ('E', "#ffffff"),
];

struct Drawing<'a> {
    trace: &'a Trace,
    first: u64,
    last: u64,
    out: String,
}

pub(crate) fn draw(program: &str, trace: &Trace) -> String {
    let first = trace.records.first().map_or(0, |record| record.time);
    let last = trace.records.last().map_or(0, |record| record.time);
    let rows = rows(trace);
    let shown = rows.len().min(MAX_ROWS);
    let height = TOP + (trace.harts + shown + 2) as f64 * ROW;
    let mut drawing = Drawing {
        trace,
        first,
        last: last.max(first + 1),
        out: format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{height}\" \
             viewBox=\"0 0 {0} {height}\" font-family=\"sans-serif\" font-size=\"11\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
            NAMES + WIDTH + MARGIN
        ),
    };
    drawing.head(program, rows.len() - shown);
    for hart in 0..trace.harts {
        drawing.hart(hart);
    }
    for (at, row) in rows[..shown].iter().enumerate() {
        drawing.row(trace.harts + at, row);
    }
    drawing.axis(TOP + (trace.harts + shown) as f64 * ROW);
    drawing.out += "</svg>\n";
    drawing.out
}

/// Returns the changes of each thread and coroutine, except those of the coroutines that switch
/// threads. The order is that of appearance; if there are more than [`MAX_ROWS`], the rows with the
/// most changes come first.
fn rows(trace: &Trace) -> Vec<Vec<&Record>> {
    let mut known = HashMap::new();
    let mut rows: Vec<Vec<&Record>> = Vec::new();
    let wanted = trace.records.iter().filter(|record| !record.is_switching);
    for record in wanted {
        let subject = (record.kind == Kind::Kernel, &record.subject);
        let at = *known.entry(subject).or_insert(rows.len());
        if at == rows.len() {
            rows.push(Vec::new());
        }
        rows[at].push(record);
    }
    if rows.len() > MAX_ROWS {
        rows.sort_by_key(|row| core::cmp::Reverse(row.len()));
    }
    rows
}

impl Drawing<'_> {
    fn x(&self, time: u64) -> f64 {
        let part = (time - self.first) as f64 / (self.last - self.first) as f64;
        NAMES + part * WIDTH
    }

    fn text(&mut self, (x, y): (f64, f64), anchor: &str, colour: &str, text: &str) {
        let text = escape(text);
        let _ = writeln!(
            self.out,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"{colour}\">{text}</text>"
        );
    }

    /// Draws a mark from one time to another, with a tooltip.
    fn mark(&mut self, row: usize, (begin, end): (u64, u64), colour: &str, tooltip: &str) {
        let y = TOP + row as f64 * ROW;
        let x = self.x(begin);
        // The minimum width keeps the shortest mark visible.
        let width = (self.x(end) - x).max(0.4);
        let tooltip = escape(tooltip);
        let _ = writeln!(
            self.out,
            "<rect x=\"{x:.2}\" y=\"{y:.1}\" width=\"{width:.2}\" height=\"{MARK}\" \
             fill=\"{colour}\"><title>{tooltip}</title></rect>"
        );
    }

    fn head(&mut self, program: &str, left_out: usize) {
        let (trace, harts) = (self.trace, self.trace.harts);
        let time = number::micros(micros(trace, self.last - self.first));
        let mut title = format!("{program}: {harts} hart{}, {time}", plural(harts));
        if trace.lost > 0 {
            let _ = write!(title, "; {} older changes are lost (--records)", trace.lost);
        }
        if left_out > 0 {
            let _ = write!(title, "; the {left_out} rows that change least are omitted");
        }
        self.text((NAMES, 18.0), "start", DARK, &title);
        let activities = ACTIVITIES.map(|(_, name, colour)| (name, colour));
        self.legend(38.0, "harts", &activities);
        let name = |letter: char| STATES.iter().find(|(known, _)| *known == letter);
        let states: Vec<_> = STATE_COLOURS
            .iter()
            .filter(|(letter, _)| !matches!(letter, 'C' | 'E'))
            .map(|(letter, colour)| (name(*letter).map_or("", |(_, name)| *name), *colour))
            .collect();
        self.legend(58.0, "threads, coroutines", &states);
    }

    fn legend(&mut self, y: f64, title: &str, entries: &[(&str, &str)]) {
        self.text((NAMES - 8.0, y), "end", SOFT, title);
        let mut x = NAMES;
        for (name, colour) in entries {
            let top = y - 9.0;
            let _ = writeln!(
                self.out,
                "<rect x=\"{x:.1}\" y=\"{top}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>"
            );
            self.text((x + 14.0, y), "start", SOFT, name);
            x += 34.0 + 6.2 * name.len() as f64;
        }
    }

    fn name(&mut self, row: usize, name: &str) {
        let y = TOP + row as f64 * ROW + MARK - 2.0;
        self.text((NAMES - 8.0, y), "end", DARK, name);
    }

    fn hart(&mut self, hart: usize) {
        self.name(hart, &format!("hart {hart}"));
        for (begin, end, activity) in spans(self.trace, hart, self.first, self.last) {
            let known = ACTIVITIES
                .iter()
                .find(|(letter, ..)| *letter == activity && begin < end);
            if let Some((_, name, colour)) = known {
                let duration = number::micros(micros(self.trace, end - begin));
                self.mark(hart, (begin, end), colour, &format!("{name}, {duration}"));
            }
        }
    }

    fn row(&mut self, row: usize, records: &[&Record]) {
        let name = records.first().map_or("", |record| &record.subject[..]);
        self.name(row, name);
        let ends = records.iter().skip(1).map(|next| next.time);
        for (record, end) in records.iter().zip(ends.chain([self.last])) {
            let colour = STATE_COLOURS
                .iter()
                .find(|(letter, _)| *letter == record.state);
            let state = STATES.iter().find(|(letter, _)| *letter == record.state);
            let (Some((_, colour)), Some((_, state)), true) = (colour, state, record.state != 'E')
            else {
                continue;
            };
            let at = micros(self.trace, record.time - self.first);
            let duration = number::micros(micros(self.trace, end - record.time));
            let (hart, level) = (record.hart, record.level);
            let tooltip = format!("{at:.1} µs, hart {hart}, level {level}: {state}, {duration}");
            self.mark(row, (record.time, end), colour, &tooltip);
        }
    }

    fn axis(&mut self, y: f64) {
        let all = self.last - self.first;
        for n in 0..=TICKS {
            let time = self.first + all * u64::from(n) / u64::from(TICKS);
            let x = self.x(time);
            let top = TOP - 6.0;
            let _ = writeln!(
                self.out,
                "<path d=\"M{x:.1} {top}V{y:.1}\" stroke=\"#d5dae0\" stroke-width=\"0.5\"/>"
            );
            let at = number::micros(micros(self.trace, time - self.first));
            self.text((x, y + 14.0), "middle", SOFT, &at);
        }
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::parse;

    const OUTPUT: &str = "trace: begin 10000000 2\n\
        trace: 0 100 t R 32 256 0 0\n\
        trace: 0 101 u R 20 256 0 100000002\n\
        trace: 0 150 u B 20 256 0 100000002\n\
        trace: 1 170 k N 0 0 0 7\n\
        trace: 1 180 k R 63 0 0 7\n\
        trace: 0 200 t I 32 256 0 0\n\
        trace: end 3\n";

    #[test]
    fn a_drawing_has_a_row_for_each_hart_thread_and_coroutine() {
        let trace = parse(OUTPUT).expect("the output is a trace");
        let drawing = draw("a<b", &trace);
        assert!(drawing.starts_with("<svg xmlns=") && drawing.ends_with("</svg>\n"));
        for name in ["hart 0", "hart 1", "thread 256.0", "coroutine 2.1 of 256"] {
            let row = format!(">{name}</text>");
            assert_eq!(drawing.matches(&row).count(), 1, "{name}: {drawing}");
        }
        assert!(drawing.contains("a&lt;b: 2 harts"), "{drawing}");
        assert!(drawing.contains("3 older changes are lost"), "{drawing}");
        assert!(drawing.contains("level 20: running, 4.90 µs"), "{drawing}");
        assert!(!drawing.contains("switching 7") && !drawing.contains("NaN"));
    }

    #[test]
    fn an_empty_trace_is_drawn() {
        let trace = parse("trace: begin 10000000 1\ntrace: end 0\n").expect("the trace is valid");
        assert!(draw("nothing", &trace).contains("hart 0"));
    }

    #[test]
    fn rows_that_change_least_are_left_out() {
        let mut output = "trace: begin 10000000 1\n".to_owned();
        for process in 1..100 {
            for time in 0..process {
                output += &format!("trace: 0 {time} t R 32 {process} 0 0\n");
            }
        }
        output += "trace: end 0\n";
        let drawing = draw("many", &parse(&output).expect("the output is a trace"));
        // There are 99 rows, and 60 of them are drawn.
        assert!(drawing.contains("the 39 rows that change least are omitted"));
        assert!(drawing.contains("thread 99.0") && !drawing.contains("thread 1.0"));
    }
}
