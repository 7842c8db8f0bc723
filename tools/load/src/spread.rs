//! Computes the median, minimum and maximum of figures from several rounds.

/// The spread of figures of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Median: the middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// Smallest figure.
    pub min: f64,
    /// Largest figure.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of figures; `None` without figures.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        Some(Spread {
            median: match sorted.len() {
                0 => return None,
                n if n % 2 == 0 => f64::midpoint(sorted[middle - 1], sorted[middle]),
                _ => sorted[middle],
            },
            min: sorted[0],
            max: sorted[sorted.len() - 1],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle() {
        let expected = Spread {
            median: 2.5,
            min: 1.0,
            max: 4.0,
        };
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]), Some(expected));
        assert_eq!(
            Spread::of([7.0, 1.0, 2.0]).map(|spread| spread.median),
            Some(2.0)
        );
        assert_eq!(Spread::of([]), None);
    }
}
