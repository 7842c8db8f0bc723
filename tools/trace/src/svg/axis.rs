//! Computes the positions of instants on the time axis, and its round marks.

/// Left end of the plot, in px.
pub(super) const LEFT: f64 = 230.0;
/// Right end of the plot, in px.
pub(super) const RIGHT: f64 = 1240.0;
/// Approximate number of marks.
const MARKS: f64 = 10.0;

/// An axis from 0 to a length in ns.
pub(super) struct Axis {
    length: f64,
}

impl Axis {
    pub(super) fn new(length: u64) -> Axis {
        Axis {
            length: length.max(1) as f64,
        }
    }

    /// Returns the horizontal position of an instant.
    pub(super) fn x(&self, at: u64) -> f64 {
        LEFT + (RIGHT - LEFT) * (at as f64 / self.length).min(1.0)
    }

    /// Returns round instants and their names.
    pub(super) fn marks(&self) -> Vec<(f64, String)> {
        let rough = self.length / MARKS;
        let decade = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * decade);
        let step = step.into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough).max(1.0);
        let (unit, name) = unit(self.length);
        let decimals = (unit / step).log10().ceil().clamp(0.0, 3.0) as usize;
        (0..=(self.length / step) as u64)
            .map(|n| {
                let at = n as f64 * step;
                let x = LEFT + (RIGHT - LEFT) * at / self.length;
                (x, format!("{:.decimals$} {name}", at / unit))
            })
            .collect()
    }
}

/// Returns the unit for times of up to `max_ns` ns, in ns, and its name.
fn unit(max_ns: f64) -> (f64, &'static str) {
    match max_ns {
        max_ns if max_ns >= 2e9 => (1e9, "s"),
        max_ns if max_ns >= 2e6 => (1e6, "ms"),
        max_ns if max_ns >= 2e3 => (1e3, "µs"),
        _ => (1.0, "ns"),
    }
}

/// Formats a time for people, with three digits or more.
pub(super) fn time(nanos: u64) -> String {
    let (unit, name) = unit(nanos as f64 * 2.0);
    let value = nanos as f64 / unit;
    let decimals = match value {
        _ if unit == 1.0 => 0,
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few_at_any_length() {
        for length in [1, 9, 1_000, 1_234, 999_999, 20_000_000, u64::MAX] {
            let axis = Axis::new(length);
            let marks = axis.marks();
            assert!((2..=12).contains(&marks.len()), "{length}: {marks:?}");
            assert!(marks.iter().all(|(x, _)| (LEFT..=RIGHT).contains(x)));
        }
        let marks = Axis::new(20_000_000).marks();
        assert_eq!(marks[0].1, "0 ms");
        assert_eq!(marks[1].1, "2 ms");
        assert_eq!(Axis::new(3_000_000).marks()[1].1, "0.5 ms");
    }

    #[test]
    fn times_have_their_unit() {
        assert_eq!(time(17), "17 ns");
        assert_eq!(time(1_500), "1.50 µs");
        assert_eq!(time(150_000_000), "150 ms");
        assert_eq!(time(12_345_678), "12.3 ms");
    }
}
