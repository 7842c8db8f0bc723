//! Allocates slots of the global page. A registration gets consecutive slots, one for each vCPU.

use upshift_board::layout::SLOTS;

use crate::admission::Trust;

/// The slots of the global page. Taking slots takes O([`SLOTS`]) time.
#[derive(Debug)]
pub(crate) struct Slots {
    is_taken: Vec<bool>,
    taken_count: usize,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            is_taken: vec![false; SLOTS],
            taken_count: 0,
        }
    }

    /// Takes consecutive free slots and returns the first. Returns `None` if more slots would then
    /// be taken than the capacity for `trust`, or if too few consecutive slots are free.
    pub(crate) fn take(&mut self, count: usize, trust: Trust) -> Option<usize> {
        if self.taken_count + count > trust.capacity(SLOTS) {
            return None;
        }
        let mut free_run = 0;
        let end = self.is_taken.iter().position(|&is_taken| {
            free_run = if is_taken { 0 } else { free_run + 1 };
            free_run == count
        })?;
        let first = end + 1 - count;
        self.is_taken[first..=end].fill(true);
        self.taken_count += count;
        Some(first)
    }

    pub(crate) fn free(&mut self, first: usize, count: usize) {
        if let Some(range) = self.is_taken.get_mut(first..first + count) {
            range.fill(false);
            self.taken_count -= count;
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
