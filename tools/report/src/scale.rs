//! Computes where values lie on an axis, and which values its ticks have.
//!
//! Every result is finite for every input, because an empty range is widened and a value without a
//! logarithm is moved to the lower end.

use std::f64::consts::LOG10_2;

use crate::number::tick_label;

/// The distribution of values along an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Equal steps from 0.
    Linear,
    /// Equal steps from the smallest value.
    Range,
    /// Powers of ten.
    Log10,
    /// Powers of two, for connections.
    Log2,
    /// `1 / (1 - q)` for a quantile q: 50 %, 90 %, 99 %, 99.9 % at readable distances.
    Quantile,
}

/// An axis with its range.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    kind: Kind,
    /// Lower end of the range, transformed.
    low: f64,
    /// Upper end of the range, transformed.
    high: f64,
}

impl Scale {
    /// Creates an axis that shows all of `values`; values that are not finite, or have no logarithm
    /// where the axis needs one, are ignored.
    pub(crate) fn covering(kind: Kind, values: impl Iterator<Item = f64>) -> Scale {
        let mut low = f64::INFINITY;
        let mut high = f64::NEG_INFINITY;
        for value in values
            .filter(|&v| v.is_finite() && (v > 0.0 || !matches!(kind, Kind::Log10 | Kind::Log2)))
        {
            let position = transform(kind, value);
            low = low.min(position);
            high = high.max(position);
        }
        if low > high {
            (low, high) = (0.0, 1.0);
        }
        match kind {
            Kind::Linear => {
                low = low.min(0.0);
                high = if high > low {
                    low + (high - low) * 1.06
                } else {
                    low + 1.0
                };
            }
            Kind::Log10 => {
                // The lower end is a power of two, so that the lowest points are above the axis.
                low = ((low - 0.05) / LOG10_2).floor() * LOG10_2;
                high = (high + 0.05).max(low + 0.9);
            }
            Kind::Range => high = if high > low { high } else { low + 1.0 },
            Kind::Log2 | Kind::Quantile => high = if high - low < 0.5 { low + 1.0 } else { high },
        }
        Scale { kind, low, high }
    }

    /// Returns the place of `value` between 0 and 1.
    pub(crate) fn place(&self, value: f64) -> f64 {
        ((transform(self.kind, value) - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// Returns the values with their labels, ascending. `count_hint` is a hint for the number of
    /// ticks on linear and decimal axes.
    pub(crate) fn ticks(&self, count_hint: usize) -> Vec<(f64, String)> {
        match self.kind {
            Kind::Linear | Kind::Range => self.linear_ticks(count_hint.max(2)),
            Kind::Log10 => self.decimal_ticks(count_hint.max(2)),
            Kind::Log2 => self.binary_ticks(),
            Kind::Quantile => [0.5, 0.9, 0.99, 0.999, 0.9999]
                .into_iter()
                .filter(|&q| self.contains(transform(self.kind, q)))
                .map(|q| (q, format!("{} %", tick_label(q * 100.0))))
                .collect(),
        }
    }

    fn contains(&self, position: f64) -> bool {
        let slack = (self.high - self.low) * 1e-9;
        position >= self.low - slack && position <= self.high + slack
    }

    fn linear_ticks(&self, count_hint: usize) -> Vec<(f64, String)> {
        let rough = (self.high - self.low) / count_hint as f64;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|m| m * power)
            .find(|&s| s >= rough)
            .unwrap_or(rough);
        let first = (self.low / step).ceil() as i64;
        (first..first + 50)
            .map(|i| i as f64 * step)
            .take_while(|&v| v <= self.high)
            .map(|v| (v, tick_label(v)))
            .collect()
    }

    fn decimal_ticks(&self, count_hint: usize) -> Vec<(f64, String)> {
        let steps: &[f64] = if self.high - self.low > count_hint as f64 * 0.5 {
            &[1.0]
        } else {
            &[1.0, 2.0, 5.0]
        };
        let mut ticks = Vec::new();
        for power in self.low.floor() as i32..=self.high.ceil() as i32 {
            for step in steps {
                let value = step * 10f64.powi(power);
                if self.contains(value.log10()) {
                    ticks.push((value, tick_label(value)));
                }
            }
        }
        ticks
    }

    fn binary_ticks(&self) -> Vec<(f64, String)> {
        let first = self.low.ceil() as i32;
        let last = self.high.floor() as i32;
        let stride = usize::try_from((last - first) / 6).unwrap_or(0) + 1;
        (first..=last)
            .step_by(stride)
            .map(|p| (2f64.powi(p), tick_label(2f64.powi(p))))
            .collect()
    }
}

fn transform(kind: Kind, value: f64) -> f64 {
    let min_value = 1e-9;
    match kind {
        Kind::Linear | Kind::Range => value,
        Kind::Log10 => value.max(min_value).log10(),
        Kind::Log2 => value.max(min_value).log2(),
        Kind::Quantile => (1.0 / (1.0 - value.clamp(0.0, 1.0 - 1e-6))).log10(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [Kind; 5] = [
        Kind::Linear,
        Kind::Range,
        Kind::Log10,
        Kind::Log2,
        Kind::Quantile,
    ];

    #[test]
    fn places_are_finite_for_odd_inputs() {
        for kind in KINDS {
            for values in [
                vec![],
                vec![0.0],
                vec![5.0, 5.0],
                vec![f64::NAN, f64::INFINITY],
                vec![-1.0, 1e12],
            ] {
                let scale = Scale::covering(kind, values.iter().copied());
                for value in [0.0, 1.0, -3.0, 1e300] {
                    let place = scale.place(value);
                    assert!(
                        (0.0..=1.0).contains(&place),
                        "{kind:?} {values:?} {value}: {place}"
                    );
                }
                assert!(scale.ticks(5).iter().all(|(v, _)| v.is_finite()));
            }
        }
    }

    #[test]
    fn a_zero_does_not_stretch_a_logarithmic_axis() {
        let scale = Scale::covering(Kind::Log10, [0.0, 10.0, 20.0].into_iter());
        assert_eq!(scale.place(0.0), 0.0);
        assert!(scale.place(20.0) - scale.place(10.0) > 0.2);
    }

    #[test]
    fn connections_tick_at_powers_of_two() {
        let ticks = Scale::covering(Kind::Log2, [1.0, 512.0].into_iter()).ticks(5);
        assert_eq!(
            ticks.iter().map(|t| t.1.as_str()).collect::<Vec<_>>(),
            ["1", "4", "16", "64", "256"]
        );
    }

    #[test]
    fn linear_axis_begins_at_zero() {
        let scale = Scale::covering(Kind::Linear, [70.0, 100.0].into_iter());
        assert_eq!(scale.place(0.0), 0.0);
        assert!(scale.place(100.0) > 0.9);
    }

    #[test]
    fn a_decimal_axis_over_little_more_than_a_decade_has_several_ticks() {
        let ticks = Scale::covering(Kind::Log10, [3.0, 60.0].into_iter()).ticks(5);
        assert!(ticks.len() >= 3, "{ticks:?}");
    }
}
