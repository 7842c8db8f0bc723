//! Writes counters, gauges and histograms in the text format of Prometheus (version 0.0.4); see
//! [`Text`].
//!
//! The runtime, the server and the daemon share this writer. Every name begins with `upshift_`; a
//! name that ends in `_total` is a counter. The caller writes each family once, with all its
//! samples, and gives times in seconds.

use std::fmt::{self, Display, Write};

/// Value of the `Content-Type` field of an answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A writer of families of samples, one after the other. Allocates the name of each family.
///
/// ```
/// use upshift_trace::prometheus::Text;
///
/// let mut out = String::new();
/// let mut text = Text::new(&mut out);
/// text.family("polls_total", "Polls begun, by level.")?;
/// text.sample(&[("level", &4)], 17)?;
/// let sample = "upshift_polls_total{level=\"4\"} 17\n";
/// assert!(out.ends_with(&format!("# TYPE upshift_polls_total counter\n{sample}")));
/// # Ok::<(), std::fmt::Error>(())
/// ```
pub struct Text<'a> {
    to: &'a mut dyn Write,
    family: String,
}

/// Names and values of labels.
pub type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

impl<'a> Text<'a> {
    /// Creates a writer to `to`.
    pub fn new(to: &'a mut dyn Write) -> Text<'a> {
        let family = String::new();
        Text { to, family }
    }

    /// Begins the family `upshift_NAME`: a counter if the name ends in `_total`, else a gauge.
    ///
    /// # Errors
    /// Returns the errors of the underlying writer, like the other methods.
    pub fn family(&mut self, name: &str, help: &str) -> fmt::Result {
        let is_counter = name.ends_with("_total");
        self.begin(name, if is_counter { "counter" } else { "gauge" }, help)
    }

    /// Begins a family of histograms, to be filled by [`Text::buckets`].
    ///
    /// # Errors
    /// Returns the errors of [`Text::family`].
    pub fn histogram(&mut self, name: &str, help: &str) -> fmt::Result {
        self.begin(name, "histogram", help)
    }

    /// Writes a family with a single sample.
    ///
    /// # Errors
    /// Returns the errors of [`Text::family`].
    pub fn single(&mut self, name: &str, help: &str, value: impl Display) -> fmt::Result {
        self.family(name, help)?;
        self.sample(&[], value)
    }

    /// Writes a sample of the current family.
    ///
    /// # Errors
    /// Returns the errors of [`Text::family`].
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) -> fmt::Result {
        self.line("", labels, &value)
    }

    /// Writes a histogram of the current family: the counts of values up to rising bounds in
    /// seconds, the sum in seconds, and the number of values.
    ///
    /// # Errors
    /// Returns the errors of [`Text::family`].
    pub fn buckets(
        &mut self,
        labels: Labels<'_>,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        sum: f64,
        count: u64,
    ) -> fmt::Result {
        for (bound, count) in buckets {
            let bucket: Vec<_> = labels
                .iter()
                .copied()
                .chain([("le", &bound as _)])
                .collect();
            self.line("_bucket", &bucket, &count)?;
        }
        let all: Vec<_> = labels
            .iter()
            .copied()
            .chain([("le", &"+Inf" as _)])
            .collect();
        self.line("_bucket", &all, &count)?;
        self.line("_sum", labels, &sum)?;
        self.line("_count", labels, &count)
    }

    fn begin(&mut self, name: &str, kind: &str, help: &str) -> fmt::Result {
        self.family = format!("upshift_{name}");
        let name = &self.family;
        writeln!(self.to, "# HELP {name} {help}\n# TYPE {name} {kind}")
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: &dyn Display) -> fmt::Result {
        write!(self.to, "{}{suffix}", self.family)?;
        for (index, (name, value)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            write!(self.to, "{before}{name}=\"")?;
            write!(Escaped(self.to), "{value}")?;
            self.to.write_char('"')?;
        }
        let after = if labels.is_empty() { "" } else { "}" };
        writeln!(self.to, "{after} {value}")
    }
}

/// A writer of the value of a label, which escapes the three special characters.
struct Escaped<'a>(&'a mut dyn Write);

impl Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(['\\', '"', '\n']) {
            match part.char_indices().next_back() {
                Some((end, '\n')) => write!(self.0, "{}\\n", &part[..end])?,
                Some((end, special @ ('\\' | '"'))) => {
                    write!(self.0, "{}\\{special}", &part[..end])?;
                }
                _ => self.0.write_str(part)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_samples_and_histograms_follow_the_format() {
        let mut out = String::new();
        let mut text = Text::new(&mut out);
        text.single("up_seconds", "Since the start.", 1.5).unwrap();
        text.family("polls_total", "Polls.").unwrap();
        text.sample(&[("level", &4), ("vcpu", &0)], 7).unwrap();
        text.histogram("wait_seconds", "Waits.").unwrap();
        text.buckets(&[("level", &4)], [(0.001, 3), (10.0, 5)], 0.25, 6)
            .unwrap();
        let expected = "\
# HELP upshift_up_seconds Since the start.
# TYPE upshift_up_seconds gauge
upshift_up_seconds 1.5
# HELP upshift_polls_total Polls.
# TYPE upshift_polls_total counter
upshift_polls_total{level=\"4\",vcpu=\"0\"} 7
# HELP upshift_wait_seconds Waits.
# TYPE upshift_wait_seconds histogram
upshift_wait_seconds_bucket{level=\"4\",le=\"0.001\"} 3
upshift_wait_seconds_bucket{level=\"4\",le=\"10\"} 5
upshift_wait_seconds_bucket{level=\"4\",le=\"+Inf\"} 6
upshift_wait_seconds_sum{level=\"4\"} 0.25
upshift_wait_seconds_count{level=\"4\"} 6
";
        assert_eq!(out, expected);
    }

    #[test]
    fn values_of_labels_are_escaped() {
        let mut out = String::new();
        let mut text = Text::new(&mut out);
        text.family("x", "X.").unwrap();
        text.sample(&[("name", &"a\"b\\c\nd")], 1).unwrap();
        assert!(
            out.ends_with("upshift_x{name=\"a\\\"b\\\\c\\nd\"} 1\n"),
            "{out}"
        );
    }
}
