//! Computes ratios of two quantities with 95 % confidence intervals, from pairs of runs in the same
//! round.
//!
//! The ratio is that of the two medians. Its interval is a percentile bootstrap over the rounds:
//! 1,000 resamples, each of which draws whole rounds, so that slow changes of the machine affect
//! both quantities of a resample and cancel. The seed is fixed, so that equal figures have equal
//! intervals.

use upshift_load::Spread;

/// Number of resamples of the rounds.
const RESAMPLES: usize = 1000;
/// Share of the resamples outside of the interval, at each end.
const TAIL: f64 = 0.025;

/// A ratio and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) value: f64,
    /// Lower end; 0 with one pair.
    pub(crate) low: f64,
    /// Upper end; infinite with one pair.
    pub(crate) high: f64,
}

/// Conclusion from an interval, for a quantity of which less is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Better,
    Worse,
    /// The interval contains 1.
    NotSeen,
}

impl Ratio {
    /// Returns the ratio of the second figures of the pairs to the first. `None` without pairs, or
    /// if a first figure is not above 0 or a pair has no finite ratio.
    pub(crate) fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        let is_ratio = |&(base, own): &(f64, f64)| base > 0.0 && (own / base).is_finite();
        if !pairs.iter().all(is_ratio) {
            return None;
        }
        let median = |side: fn(&(f64, f64)) -> f64, rounds: &[(f64, f64)]| {
            Some(Spread::of(rounds.iter().map(side))?.median)
        };
        let ratio = |rounds: &[(f64, f64)]| {
            Some(median(|pair| pair.1, rounds)? / median(|pair| pair.0, rounds)?)
        };
        let value = ratio(pairs)?;
        if pairs.len() == 1 {
            return Some(Ratio {
                value,
                low: 0.0,
                high: f64::INFINITY,
            });
        }
        let mut random = 1_u64;
        let mut draw = || {
            // The generator of Knuth's MMIX; its high bits are the random ones.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            pairs[(random >> 33) as usize % pairs.len()]
        };
        let mut ratios: Vec<f64> = Vec::with_capacity(RESAMPLES);
        for _ in 0..RESAMPLES {
            let resample: Vec<(f64, f64)> = pairs.iter().map(|_| draw()).collect();
            ratios.extend(ratio(&resample));
        }
        ratios.sort_by(f64::total_cmp);
        let cut = (TAIL * RESAMPLES as f64) as usize;
        Some(Ratio {
            value,
            low: ratios[cut],
            high: ratios[RESAMPLES - 1 - cut],
        })
    }

    /// Classifies the ratio, for a quantity of which less is better.
    pub(crate) fn change(&self) -> Change {
        if self.high < 1.0 {
            Change::Better
        } else if self.low > 1.0 {
            Change::Worse
        } else {
            Change::NotSeen
        }
    }

    /// Formats the ratio with its interval; the ratio of one pair has no interval.
    pub(crate) fn format(&self, digits: usize) -> String {
        let Ratio { value, low, high } = self;
        if high.is_infinite() {
            return format!("{value:.digits$}");
        }
        format!("{value:.digits$} ({low:.digits$}–{high:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_of_both_quantities_does_not_hide_a_difference() {
        // The machine becomes three times as slow; the new commit takes about 10 % less each time.
        let pairs = [
            (100.0, 90.1),
            (150.0, 134.9),
            (220.0, 198.2),
            (300.0, 269.8),
        ];
        let ratio = Ratio::of(&pairs).unwrap();
        assert!((ratio.value - 0.9).abs() < 0.002, "{ratio:?}");
        assert_eq!(ratio.change(), Change::Better);
        let swapped = pairs.map(|(old, new)| (new, old));
        assert_eq!(Ratio::of(&swapped).unwrap().change(), Change::Worse);
    }

    #[test]
    fn noise_is_not_a_change() {
        let pairs = [(100.0, 110.0), (100.0, 92.0), (100.0, 104.0), (100.0, 97.0)];
        let ratio = Ratio::of(&pairs).unwrap();
        assert_eq!(ratio.change(), Change::NotSeen);
        assert!(ratio.low < 0.97 && ratio.high > 1.03, "{ratio:?}");
    }

    #[test]
    fn an_outlier_among_many_rounds_moves_neither_the_ratio_nor_the_interval() {
        let mut pairs: Vec<(f64, f64)> =
            (0..15).map(|i| (100.0, 100.0 + f64::from(i % 3))).collect();
        pairs[7].1 = 900.0;
        let ratio = Ratio::of(&pairs).unwrap();
        assert_eq!(ratio.value, 1.01);
        assert!(ratio.low >= 1.0 && ratio.high <= 1.02, "{ratio:?}");
        assert_eq!(Some(ratio), Ratio::of(&pairs), "the seed is fixed");
    }

    #[test]
    fn an_interval_needs_two_pairs_and_a_ratio_needs_figures_above_zero() {
        assert_eq!(Ratio::of(&[]), None);
        assert_eq!(Ratio::of(&[(0.0, 1.0), (1.0, 1.0)]), None);
        let single_pair = Ratio::of(&[(2.0, 1.0)]).unwrap();
        assert_eq!(
            (single_pair.format(2).as_str(), single_pair.change()),
            ("0.50", Change::NotSeen)
        );
        let same = Ratio::of(&[(2.0, 2.0), (3.0, 3.0)]).unwrap();
        assert_eq!(same.format(1), "1.0 (1.0–1.0)");
    }
}
