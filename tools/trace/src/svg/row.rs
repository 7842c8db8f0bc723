//! Draws one row of the plot: spans of time as bars, at most two for each pixel, for any number of
//! spans.
//!
//! A span of a pixel or more is a bar of its own, with its name. Shorter spans are added up for
//! each pixel, which shows the style with the largest share. The less of the pixel is covered, the
//! paler the bar: a vCPU that is busy for a tenth looks like a tenth.

use std::fmt::Write as _;

use super::axis::Axis;
use crate::markup::escape;

/// Style of a bar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Style<'a> {
    pub(super) fill: &'a str,
    /// Opacity in per cent.
    pub(super) strength: u8,
    /// Space above and below the bar, in px.
    pub(super) inset: u8,
}

pub(super) struct Row<'a, 'b> {
    out: &'b mut String,
    axis: &'a Axis,
    top: f64,
    height: f64,
    /// Left end of the current column, which is one pixel wide.
    column: f64,
    /// Covered share of the current column, by style.
    shares: Vec<(Style<'a>, f64)>,
    /// Left end, right end, style and strength of the last bar of whole columns, which is drawn
    /// when it ends.
    last: Option<(f64, f64, Style<'a>, u8)>,
}

impl<'a, 'b> Row<'a, 'b> {
    pub(super) fn new(out: &'b mut String, axis: &'a Axis, top: f64, height: f64) -> Row<'a, 'b> {
        Row {
            out,
            axis,
            top,
            height,
            column: 0.0,
            shares: Vec::new(),
            last: None,
        }
    }

    /// Adds a span, which begins no earlier than the previous span.
    pub(super) fn add(&mut self, from: u64, to: u64, style: Style<'a>, name: impl Fn() -> String) {
        let (left, right) = (self.axis.x(from), self.axis.x(to));
        if right - left >= 1.0 {
            self.flush();
            self.rect(left, right, style, 100, &name());
            return;
        }
        let column = left.floor();
        if column > self.column {
            self.end_column();
            self.column = column;
        }
        let share = right - left;
        match self.shares.iter_mut().find(|(known, _)| *known == style) {
            Some((_, sum)) => *sum += share,
            None => self.shares.push((style, share)),
        }
    }

    pub(super) fn finish(mut self) {
        self.flush();
    }

    fn flush(&mut self) {
        self.end_column();
        if let Some((left, right, style, strength)) = self.last.take() {
            self.rect(left, right, style, strength, "");
        }
    }

    fn end_column(&mut self) {
        let covered: f64 = self.shares.iter().map(|(_, share)| share).sum();
        let main_style = self
            .shares
            .drain(..)
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .map(|(style, _)| style);
        let Some(style) = main_style else { return };
        // The strength is rounded up to fifths, so that neighbours can merge and any activity stays
        // visible.
        let strength = ((covered * 5.0).ceil() * 20.0).clamp(20.0, 100.0) as u8;
        let (left, right) = (self.column, self.column + 1.0);
        if let Some((_, end, known, shade)) = &mut self.last
            && (*known, *shade) == (style, strength)
            && *end >= left
        {
            *end = right;
            return;
        }
        if let Some((left, right, style, strength)) =
            self.last.replace((left, right, style, strength))
        {
            self.rect(left, right, style, strength, "");
        }
    }

    fn rect(&mut self, left: f64, right: f64, style: Style<'_>, strength: u8, name: &str) {
        let opacity = f64::from(style.strength) * f64::from(strength) / 1e4;
        let inset = f64::from(style.inset);
        let _ = write!(
            self.out,
            "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"",
            self.top + inset,
            right - left,
            self.height - 2.0 * inset,
            style.fill,
        );
        if opacity < 1.0 {
            let _ = write!(self.out, " fill-opacity=\"{opacity:.2}\"");
        }
        let _ = match name {
            "" => writeln!(self.out, "/>"),
            name => writeln!(self.out, "><title>{}</title></rect>", escape(name)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::axis::{LEFT, RIGHT};
    use super::*;

    const STYLE: Style<'_> = Style {
        fill: "#123456",
        strength: 100,
        inset: 2,
    };

    #[test]
    fn bars_are_bounded_and_paler_the_less_they_are_covered() {
        let axis = Axis::new(10_000_000);
        let mut out = String::new();
        let mut row = Row::new(&mut out, &axis, 0.0, 20.0);
        let other = Style {
            fill: "#654321",
            ..STYLE
        };
        for n in 0..100_000 {
            let style = if n / 500 % 2 == 0 { STYLE } else { other };
            row.add(n * 100, n * 100 + 30, style, String::new);
        }
        row.finish();
        let bars = out.matches("<rect").count();
        assert!(bars < 2 * (RIGHT - LEFT) as usize, "{bars}");
        assert!(out.contains("fill-opacity=\"0.40\""), "{out}");
        assert!(!out.contains("fill-opacity=\"1"), "{out}");
    }

    #[test]
    fn a_long_stretch_is_a_bar_with_its_name() {
        let axis = Axis::new(1_000);
        let mut out = String::new();
        let mut row = Row::new(&mut out, &axis, 0.0, 20.0);
        row.add(0, 500, STYLE, || "<a & b>".into());
        row.finish();
        assert_eq!(out.matches("<rect").count(), 1);
        assert!(out.contains("<title>&lt;a &amp; b&gt;</title>"));
    }
}
