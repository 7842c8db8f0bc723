//! Allocates slots of the global page. A registration gets consecutive slots, one for each vCPU.

use upshift_board::layout::SLOTS;

use crate::admission::Trust;

/// Taking slots costs O([`SLOTS`]).
#[derive(Debug)]
pub(crate) struct Slots {
    taken: Vec<bool>,
    count: usize,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            taken: vec![false; SLOTS],
            count: 0,
        }
    }

    /// Takes consecutive free slots and returns the first. Fails if the part of the capacity for
    /// this user is used up.
    pub(crate) fn take(&mut self, count: usize, trust: Trust) -> Option<usize> {
        if self.count + count > trust.capacity(SLOTS) {
            return None;
        }
        let mut free = 0;
        let end = self.taken.iter().position(|&taken| {
            free = if taken { 0 } else { free + 1 };
            free == count
        })?;
        let first = end + 1 - count;
        self.taken[first..=end].fill(true);
        self.count += count;
        Some(first)
    }

    pub(crate) fn free(&mut self, first: usize, count: usize) {
        if let Some(range) = self.taken.get_mut(first..first + count) {
            range.fill(false);
            self.count -= count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_in_a_row_and_reused() {
        let mut slots = Slots::new();
        assert_eq!(slots.take(4, Trust::Root), Some(0));
        assert_eq!(slots.take(2, Trust::Root), Some(4));
        slots.free(0, 4);
        assert_eq!(slots.take(5, Trust::Root), Some(6));
        assert_eq!(slots.take(3, Trust::Root), Some(0));
        assert_eq!(slots.take(1, Trust::Root), Some(3));
        assert_eq!(slots.take(SLOTS, Trust::Root), None);
        let rest = SLOTS - 11;
        assert_eq!(slots.take(rest, Trust::Root), Some(11));
        assert_eq!(slots.take(1, Trust::Root), None);
        slots.free(0, SLOTS / 8);
        assert_eq!(slots.take(1, Trust::Anybody), None);
        assert_eq!(slots.take(1, Trust::Root), Some(0));
    }
}
