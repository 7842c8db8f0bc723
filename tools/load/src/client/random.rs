//! A small generator of random numbers: SplitMix64 (Steele, Lea, Flood 2014). Equal seeds give
//! equal loads.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns a number that is uniform in 0..1, never 1.
    pub(crate) fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        (z >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns an exponentially distributed number with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -(1.0 - self.uniform()).ln()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_expected_mean_and_repeat_by_seed() {
        let mean = |draw: fn(&mut Random) -> f64| {
            let mut random = Random::new(7);
            (0..100_000).map(|_| draw(&mut random)).sum::<f64>() / 1e5
        };
        assert!((mean(Random::uniform) - 0.5).abs() < 0.01);
        assert!((mean(Random::exponential) - 1.0).abs() < 0.02);
        assert_eq!(Random::new(3).uniform(), Random::new(3).uniform());
        assert_ne!(Random::new(3).uniform(), Random::new(4).uniform());
    }
}
