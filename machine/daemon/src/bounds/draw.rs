//! Moments that nobody can foresee.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A sequence of numbers that only this process knows.
#[derive(Debug, Default)]
pub(crate) struct Draw {
    secret: RandomState,
    count: u64,
}

impl Draw {
    /// The next: at least 0, less than 1.
    pub(crate) fn next(&mut self) -> f64 {
        self.count += 1;
        let mut hasher = self.secret.build_hasher();
        hasher.write_u64(self.count);
        (hasher.finish() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::Draw;

    #[test]
    fn numbers_are_spread_and_differ_between_sequences() {
        let (mut a, mut b) = (Draw::default(), Draw::default());
        let drawn: Vec<f64> = (0..1000).map(|_| a.next()).collect();
        assert!(drawn.iter().all(|it| (0.0..1.0).contains(it)));
        let sum: f64 = drawn.iter().sum();
        assert!((300.0..700.0).contains(&sum), "{sum}");
        assert!(drawn.iter().any(|&it| it != b.next()));
    }
}
