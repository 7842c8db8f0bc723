//! Draws a timeline as one SVG picture.
//!
//! ```text
//!   name: 20 ms, 4,711 events                                          ■ 0 ■ 8 ■ 32   legend
//!   vCPU 0        ▒▒███▒██████▒▒         ▒▒██▒     polls by level; grey: between; empty: parked
//!   vCPU 1        ▒████▒
//!   level 0       ░█  ░█                           pale: a coroutine waits; full: one runs
//!   level 32      ░░░███████
//!   7.0 main.rs:9 ··──░█──░██                      single coroutines: their states
//!                 |    |    |    |   0 … 20 ms
//! ```
//!
//! The size is bounded: at most two bars for each pixel and row, and [`COROUTINES`] single
//! coroutines. Styles of an enclosing page do not change the picture.

mod axis;
mod row;
mod text;

use std::collections::HashMap;
use std::fmt::Write as _;

use upshift_core::{CoroutineId, State, Step};

use crate::event::EventKind;
use crate::spans::{Span, Spans};
use crate::timeline::Timeline;
use axis::{Axis, LEFT, RIGHT, time};
use row::{Row, Style};
use text::{Anchor, Palette, label, tail};

/// Largest number of single coroutines that are drawn. The coroutines that ran longest are
/// chosen.
pub const COROUTINES: usize = 16;
/// Largest number of vCPUs that are drawn, starting with the first.
const VCPUS: usize = 128;
/// Width of the picture, in px.
const WIDTH: f64 = RIGHT + 30.0;
/// Height of the row of a vCPU, in px.
const ROW: f64 = 24.0;
/// Height of the row of a level or of a coroutine, in px.
const THIN: f64 = 18.0;
// Styles of texts, and fills of bars.
const DARK: &str = "font-size:12px;fill:#1b1f24";
const SOFT: &str = "font-size:11px;fill:#57606a";
const HEAD: &str = "font-size:12px;font-weight:600;fill:#1b1f24";
const AWAKE: &str = "#e3e7ec";
const BLOCKED: &str = "#9aa5b1";
const HATCH: &str = "url(#upshift-suspended)";

/// Draws a timeline as an `<svg>` element.
#[must_use]
pub fn draw(timeline: &Timeline) -> String {
    let spans = Spans::of(timeline);
    let used = spans
        .states
        .iter()
        .fold(0, |all, span| all | span.level.bit());
    let picture = Picture {
        timeline,
        spans: &spans,
        axis: Axis::new(timeline.length),
        palette: Palette::of(used),
    };
    picture.draw()
}

struct Picture<'a> {
    timeline: &'a Timeline,
    spans: &'a Spans,
    axis: Axis,
    palette: Palette,
}

impl Picture<'_> {
    fn draw(&self) -> String {
        let mut body = String::new();
        let mut y = self.head(&mut body);
        let top = y + 4.0;
        y = self.vcpus(&mut body, y);
        y = self.levels(&mut body, y);
        y = self.coroutines(&mut body, y);
        let marks = self.marks(top, y);
        let height = y + 30.0;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\" \
             aria-label=\"timeline\" style=\"font-family:system-ui,'DejaVu Sans',sans-serif\">\n\
             <defs><pattern id=\"upshift-suspended\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" \
             patternTransform=\"rotate(45)\"><rect width=\"5\" height=\"5\" fill=\"#fff\" fill-opacity=\"0.6\"/>\
             <rect width=\"2\" height=\"5\" fill=\"#1b1f24\" fill-opacity=\"0.7\"/></pattern></defs>\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{marks}{body}</svg>\n"
        )
    }

    /// Draws the title and the legend; returns the top of the plot.
    fn head(&self, out: &mut String) -> f64 {
        let timeline = self.timeline;
        let lost = match timeline.lost {
            0 => String::new(),
            lost => format!(", {lost} older ones lost"),
        };
        let events = timeline.events.len();
        let title = format!(
            "{}: {}, {events} events{lost}",
            timeline.name,
            time(timeline.length)
        );
        label(
            out,
            12.0,
            22.0,
            Anchor::Start,
            "font-size:15px;font-weight:600;fill:#1b1f24",
            &tail(&title, 140),
        );
        let mut x = 12.0;
        let mut y = 46.0;
        let mut entry = |out: &mut String, swatch: &str, text: &str| {
            let width = 26.0 + 6.0 * text.chars().count() as f64;
            if x + width > WIDTH {
                (x, y) = (12.0, y + 20.0);
            }
            let _ = writeln!(
                out,
                "<g transform=\"translate({x:.1} {:.1})\">{swatch}</g>",
                y - 10.0
            );
            label(out, x + 18.0, y, Anchor::Start, SOFT, text);
            x += width;
        };
        let bar = |fill: &str, opacity: f64| {
            format!("<rect width=\"13\" height=\"12\" fill=\"{fill}\" fill-opacity=\"{opacity}\"/>")
        };
        for level in &self.palette.levels {
            entry(
                out,
                &bar(self.palette.colour(*level), 1.0),
                &format!("level {level}"),
            );
        }
        let colour = "#57606a";
        entry(out, &bar(colour, 1.0), "running");
        entry(out, &bar(colour, 0.3), "ready, waits for a vCPU");
        entry(
            out,
            &format!("{}{}", bar(colour, 0.45), bar(HATCH, 1.0)),
            "suspended in its poll",
        );
        entry(
            out,
            &format!("<rect y=\"4.5\" width=\"13\" height=\"3\" fill=\"{BLOCKED}\"/>"),
            "blocked",
        );
        entry(
            out,
            "<rect y=\"4.5\" width=\"13\" height=\"3\" fill=\"none\" stroke=\"#57606a\"/>",
            "created",
        );
        entry(out, &bar(AWAKE, 1.0), "awake, between polls");
        entry(
            out,
            "<rect x=\"0.5\" y=\"0.5\" width=\"12\" height=\"11\" fill=\"#fff\" stroke=\"#c8ced6\"/>",
            "parked",
        );
        entry(
            out,
            &format!("<g transform=\"translate(6.5 12)\">{ARRIVAL}</g>"),
            "I/O arrived",
        );
        entry(
            out,
            &format!("<g transform=\"translate(6.5 0)\">{THEFT}</g>"),
            "work stolen",
        );
        y + 18.0
    }

    fn heading(&self, out: &mut String, y: f64, text: &str) -> f64 {
        label(out, 12.0, y + 16.0, Anchor::Start, HEAD, text);
        y + 24.0
    }

    fn vcpus(&self, out: &mut String, y: f64) -> f64 {
        let all = self.timeline.vcpus as usize;
        let shown = all.min(VCPUS);
        let heading = match all - shown {
            0 => "vCPUs: what each polls".to_owned(),
            _ => format!("vCPUs: what the first {VCPUS} of {all} poll"),
        };
        let mut y = self.heading(out, y, &heading);
        let mut awake = vec![Vec::new(); shown];
        for stretch in &self.spans.awake {
            if let Some(row) = awake.get_mut(stretch.vcpu as usize) {
                row.push((stretch.from, stretch.to));
            }
        }
        let mut polls: Vec<Vec<&Span>> = vec![Vec::new(); shown];
        for span in self
            .spans
            .states
            .iter()
            .filter(|span| span.state == State::Running)
        {
            if let Some(row) = polls.get_mut(span.vcpu as usize) {
                row.push(span);
            }
        }
        for vcpu in 0..shown {
            label(
                out,
                LEFT - 10.0,
                y + 16.0,
                Anchor::End,
                DARK,
                &format!("vCPU {vcpu}"),
            );
            let mut row = Row::new(out, &self.axis, y, ROW);
            let grey = Style {
                fill: AWAKE,
                strength: 100,
                inset: 2,
            };
            awake[vcpu].sort_unstable();
            for &(from, to) in &awake[vcpu] {
                row.add(from, to, grey, || {
                    format!("vCPU {vcpu} awake, {}", stretch(from, to))
                });
            }
            row.finish();
            polls[vcpu].sort_by_key(|span| span.from);
            let mut row = Row::new(out, &self.axis, y, ROW);
            for span in &polls[vcpu] {
                let style = Style {
                    fill: self.palette.colour(span.level),
                    strength: 100,
                    inset: 4,
                };
                row.add(span.from, span.to, style, || self.name(span));
            }
            row.finish();
            self.signs(out, vcpu as u32, y);
            y += ROW;
        }
        y + 6.0
    }

    /// Draws arrivals and thefts of a vCPU, at most one each for two pixels.
    fn signs(&self, out: &mut String, vcpu: u32, y: f64) {
        let (mut arrival, mut theft) = (f64::MIN, f64::MIN);
        for event in self
            .timeline
            .events
            .iter()
            .filter(|event| event.vcpu == vcpu)
        {
            let x = self.axis.x(event.at);
            let (last, y, sign) = match event.kind {
                EventKind::Arrived(_) => (&mut arrival, y + ROW - 1.0, ARRIVAL),
                EventKind::Coroutine(Step::Stolen { .. }, _) => (&mut theft, y, THEFT),
                _ => continue,
            };
            if x - *last >= 2.0 {
                *last = x;
                let _ = writeln!(out, "<g transform=\"translate({x:.1} {y:.1})\">{sign}</g>");
            }
        }
    }

    fn levels(&self, out: &mut String, y: f64) -> f64 {
        if self.palette.levels.is_empty() {
            return y;
        }
        let mut y = self.heading(out, y, "levels: what waits, what runs");
        for &level in &self.palette.levels {
            label(
                out,
                LEFT - 10.0,
                y + 13.0,
                Anchor::End,
                DARK,
                &format!("level {level}"),
            );
            for state in [State::Ready, State::Suspended, State::Running] {
                let of_level = self
                    .spans
                    .states
                    .iter()
                    .filter(|span| (span.level, span.state) == (level, state));
                let mut row = Row::new(out, &self.axis, y, THIN);
                for (from, to) in union(of_level.map(|span| (span.from, span.to)).collect()) {
                    for style in self.styles(level, state).into_iter().flatten() {
                        row.add(from, to, style, || {
                            format!(
                                "level {level}: {}, {}",
                                state_name(state),
                                stretch(from, to)
                            )
                        });
                    }
                }
                row.finish();
            }
            y += THIN;
        }
        y + 6.0
    }

    fn coroutines(&self, out: &mut String, y: f64) -> f64 {
        let mut run_times: HashMap<CoroutineId, (u64, &Span)> = HashMap::new();
        for span in &self.spans.states {
            let (sum, first) = run_times.entry(span.id).or_insert((0, span));
            if span.from < first.from {
                *first = span;
            }
            if span.state == State::Running {
                *sum += span.to - span.from;
            }
        }
        if run_times.is_empty() {
            return y;
        }
        let all = run_times.len();
        let mut shown: Vec<(u64, &Span)> = run_times.into_values().collect();
        shown.sort_by_key(|(run_time, first)| (std::cmp::Reverse(*run_time), first.id));
        shown.truncate(COROUTINES);
        shown.sort_by_key(|(_, first)| (first.level, first.from, first.id));
        let heading = if all > COROUTINES {
            format!("coroutines: the states of the {COROUTINES} of {all} that ran longest")
        } else {
            "coroutines: their states".to_owned()
        };
        let mut y = self.heading(out, y, &heading);
        let mut spans_by_id: HashMap<CoroutineId, Vec<&Span>> = HashMap::new();
        for span in &self.spans.states {
            spans_by_id.entry(span.id).or_default().push(span);
        }
        for (_, first) in shown {
            let site = self.timeline.site_name(first.site);
            let name = format!("{} {}", first.id, tail(site, 28));
            label(out, LEFT - 10.0, y + 13.0, Anchor::End, SOFT, &name);
            let mut spans = spans_by_id.remove(&first.id).unwrap_or_default();
            spans.sort_by_key(|span| span.from);
            let mut row = Row::new(out, &self.axis, y, THIN);
            for span in spans {
                for style in self.styles(span.level, span.state).into_iter().flatten() {
                    row.add(span.from, span.to, style, || self.name(span));
                }
            }
            row.finish();
            y += THIN;
        }
        y + 6.0
    }

    /// Returns the styles of a state, drawn on top of each other.
    fn styles(&self, level: upshift_core::Level, state: State) -> [Option<Style<'_>>; 2] {
        let style = |fill, strength, inset| {
            Some(Style {
                fill,
                strength,
                inset,
            })
        };
        let colour = self.palette.colour(level);
        match state {
            State::Running => [style(colour, 100, 2), None],
            State::Ready => [style(colour, 30, 2), None],
            State::Suspended => [style(colour, 45, 2), style(HATCH, 100, 2)],
            State::Blocked => [style(BLOCKED, 100, 8), None],
            State::Created => [style("#57606a", 60, 7), style("#ffffff", 100, 8)],
            State::Exited => [None, None],
        }
    }

    fn name(&self, span: &Span) -> String {
        format!(
            "coroutine {}, level {}, {} on vCPU {}, {}; spawned at {}",
            span.id,
            span.level,
            state_name(span.state),
            span.vcpu,
            stretch(span.from, span.to),
            self.timeline.site_name(span.site)
        )
    }

    fn marks(&self, top: f64, bottom: f64) -> String {
        let mut out = String::new();
        for (x, text) in self.axis.marks() {
            let _ = writeln!(
                out,
                "<path d=\"M{x:.1} {top:.1}V{bottom:.1}\" stroke=\"#d5dae0\" stroke-width=\"1\" fill=\"none\"/>"
            );
            label(&mut out, x, bottom + 18.0, Anchor::Middle, SOFT, &text);
        }
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT:.1} {bottom:.1}H{RIGHT:.1}\" stroke=\"#57606a\" stroke-width=\"1\" fill=\"none\"/>"
        );
        out
    }
}

/// A tick below a row.
const ARRIVAL: &str = "<path d=\"M0 -5L2.5 0H-2.5Z\" fill=\"#1b1f24\"/>";
/// A tick above a row.
const THEFT: &str = "<path d=\"M0 5L2.5 0H-2.5Z\" fill=\"#8250df\"/>";

fn state_name(state: State) -> &'static str {
    match state {
        State::Created => "created",
        State::Ready => "ready",
        State::Running => "running",
        State::Blocked => "blocked",
        State::Suspended => "suspended",
        State::Exited => "exited",
    }
}

fn stretch(from: u64, to: u64) -> String {
    format!("{} from {}", time(to - from), time(from))
}

/// Merges overlapping spans and returns them in order.
fn union(mut stretches: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    stretches.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::new();
    for (from, to) in stretches {
        match out.last_mut() {
            Some((_, end)) if *end >= from => *end = to.max(*end),
            _ => out.push((from, to)),
        }
    }
    out
}
