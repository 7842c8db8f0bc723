//! Ratio of two quantities and its confidence interval, from pairs of runs.
//!
//! The two runs of a pair follow each other, so that slow changes of the machine affect both and
//! cancel. Ratios of times are skewed; their logarithms are taken to be normally distributed, and
//! the interval is that of Student's t for their mean.

/// A ratio and its 95 % confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) mean: f64,
    pub(crate) low: f64,
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

/// The 97.5 % quantiles of Student's t, for 1 degree of freedom and more.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

impl Ratio {
    /// Returns the ratio of new to old. `None` with fewer than two pairs, or with a figure that is
    /// not above 0.
    pub(crate) fn of(pairs: &[(f64, f64)]) -> Option<Ratio> {
        let is_positive = |value: f64| value > 0.0 && value.is_finite();
        if pairs.len() < 2 || !pairs.iter().all(|&(a, b)| is_positive(a) && is_positive(b)) {
            return None;
        }
        let count = pairs.len() as f64;
        let logs: Vec<f64> = pairs.iter().map(|(old, new)| (new / old).ln()).collect();
        let mean = logs.iter().sum::<f64>() / count;
        let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (count - 1.0);
        let t = T.get(pairs.len() - 2).copied().unwrap_or(1.96);
        let half = t * (variance / count).sqrt();
        Some(Ratio {
            mean: mean.exp(),
            low: (mean - half).exp(),
            high: (mean + half).exp(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_drifts_in_both_does_not_hide_a_difference() {
        // The machine becomes three times as slow; the new commit takes about 10 % less each time.
        let pairs = [
            (100.0, 90.1),
            (150.0, 134.9),
            (220.0, 198.2),
            (300.0, 269.8),
        ];
        let ratio = Ratio::of(&pairs).unwrap();
        assert!((ratio.mean - 0.9).abs() < 0.001, "{ratio:?}");
        assert_eq!(ratio.change(), Change::Better);
        let swapped = pairs.map(|(old, new)| (new, old));
        assert_eq!(Ratio::of(&swapped).unwrap().change(), Change::Worse);
    }

    #[test]
    fn noise_is_no_change() {
        let pairs = [(100.0, 110.0), (100.0, 92.0), (100.0, 104.0), (100.0, 97.0)];
        let ratio = Ratio::of(&pairs).unwrap();
        assert_eq!(ratio.change(), Change::NotSeen);
        assert!(ratio.low < 0.92 && ratio.high > 1.08, "{ratio:?}");
    }

    #[test]
    fn two_pairs_and_figures_above_zero_are_needed() {
        assert_eq!(Ratio::of(&[(1.0, 1.0)]), None);
        assert_eq!(Ratio::of(&[(1.0, 0.0), (1.0, 1.0)]), None);
        let same = Ratio::of(&[(2.0, 2.0), (3.0, 3.0)]).unwrap();
        assert_eq!((same.low, same.mean, same.high), (1.0, 1.0, 1.0));
        assert_eq!(same.change(), Change::NotSeen);
    }
}
