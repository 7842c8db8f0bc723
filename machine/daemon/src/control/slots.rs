//! Words of the global page: which are free. A registration gets as many in a row as it has vCPUs.

use upshift_board::layout::SLOTS;

use crate::admission::Standing;

/// See the module. O([`SLOTS`]) to take.
#[derive(Debug)]
pub(crate) struct Slots {
    taken: Vec<bool>,
    /// How many are.
    count: usize,
}

impl Slots {
    pub(crate) fn new() -> Slots {
        Slots {
            taken: vec![false; SLOTS],
            count: 0,
        }
    }

    /// The first of `count` free ones in a row, if as many may be taken by one of this standing.
    pub(crate) fn take(&mut self, count: usize, standing: Standing) -> Option<usize> {
        if self.count + count > standing.of(SLOTS) {
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
        assert_eq!(slots.take(4, Standing::Root), Some(0));
        assert_eq!(slots.take(2, Standing::Root), Some(4));
        slots.free(0, 4);
        assert_eq!(slots.take(5, Standing::Root), Some(6));
        assert_eq!(slots.take(3, Standing::Root), Some(0));
        assert_eq!(slots.take(1, Standing::Root), Some(3));
        assert_eq!(slots.take(SLOTS, Standing::Root), None);
        let rest = SLOTS - 11;
        assert_eq!(slots.take(rest, Standing::Root), Some(11));
        assert_eq!(slots.take(1, Standing::Root), None);
        slots.free(0, SLOTS / 8);
        assert_eq!(slots.take(1, Standing::Anybody), None);
        assert_eq!(slots.take(1, Standing::Root), Some(0));
    }
}
