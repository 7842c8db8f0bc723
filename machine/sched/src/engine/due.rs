//! [`Due`]: when the loop has to do something next.
//!
//! Turns end at exact times. A piece or a look for births may come somewhat earlier or later, so it is done at the end of a turn
//! where one is near: a wake-up takes some 20 µs from the task in front on a virtual machine, a look takes one. With turns of
//! 5 ms that leaves 40 wake-ups a second beside those of the turns, instead of 180. Pure logic.

use crate::config::between_looks;
use crate::policy::Nanos;

/// A piece begins or ends at the end of a turn that is no farther off than this part of its length.
const NEAR: Nanos = 4;

/// How often threads are looked at thoroughly, in times between looks; and how much oftener they are looked for after births.
const THOROUGH: Nanos = 10;

/// Times of CLOCK_MONOTONIC, ns.
#[derive(Debug)]
pub(super) struct Due {
    /// The turn ends; `None`: not by time.
    pub(super) pick: Option<Nanos>,
    /// A piece begins or ends.
    piece: Option<Nanos>,
    /// How far `piece` may be moved.
    slack: Nanos,
    /// When the piece began that is open or was open last.
    opened: Nanos,
    pieces: u64,
    look: Nanos,
    thorough: Nanos,
    /// From one look to the next at most, and now.
    follow: Nanos,
    every: Nanos,
    pub(super) publish: Nanos,
}

impl Due {
    /// `pieces`: how long the CPUs are closed and open; `follow`: from one look to the next.
    pub(super) fn new(now: Nanos, pieces: Option<(Nanos, Nanos)>, follow: Nanos) -> Due {
        Due {
            pick: Some(now),
            piece: pieces.map(|(closed, _)| now + closed),
            slack: pieces.map_or(0, |(closed, _)| closed / NEAR),
            opened: now,
            pieces: 0,
            look: now + follow,
            thorough: now + follow * THOROUGH,
            follow,
            every: follow,
            publish: now,
        }
    }

    /// The next wake-up.
    pub(super) fn next(&self) -> Nanos {
        let hard = [self.pick, self.piece].into_iter().flatten();
        hard.fold(self.look, Nanos::min)
    }

    /// A turn has just begun: moves the next beginning or end of a piece that falls into it to its nearer end.
    pub(super) fn align_piece(&mut self, now: Nanos) {
        let (Some(piece), Some(end)) = (self.piece, self.pick) else {
            return;
        };
        if !(now..end).contains(&piece) {
            return;
        }
        let (before, after) = (piece - now, end - piece);
        if before.min(after) <= self.slack {
            self.piece = Some(if before <= after { now } else { end });
        }
    }

    pub(super) fn piece_is_due(&self, now: Nanos) -> bool {
        self.piece.is_some_and(|at| now >= at)
    }

    /// A piece has just begun (`open`) or ended. After a longer piece the CPUs are closed for longer.
    pub(super) fn next_piece(&mut self, now: Nanos, open: bool, pieces: Option<(Nanos, Nanos)>) {
        let length = pieces.map(|(closed, length)| {
            if open {
                self.opened = now;
                return length;
            }
            self.pieces += 1;
            let was = (now - self.opened) as f64 / length.max(1) as f64;
            uneven(closed as f64 * was.clamp(0.5, 2.0), self.pieces)
        });
        self.piece = length.map(|length| now + length);
        self.slack = length.unwrap_or(0) / NEAR;
    }

    /// A piece is due at `now`, and not needed.
    pub(super) fn pass_piece(&mut self, now: Nanos, pieces: Option<(Nanos, Nanos)>) {
        self.pieces += 1;
        self.piece = pieces.map(|(closed, _)| now + uneven(closed as f64, self.pieces));
        self.slack = pieces.map_or(0, |(closed, _)| closed / NEAR);
    }

    /// Whether to look for births: the time has come, or comes before the next wake-up.
    pub(super) fn wants_a_look(&self, now: Nanos) -> bool {
        let next = [self.pick, self.piece].into_iter().flatten().min();
        let before = next.is_some_and(|next| next > self.look);
        now >= self.look || (before && now + self.every / 2 >= self.look)
    }

    /// Whether the look at `now` is to be a thorough one.
    pub(super) fn is_thorough(&self, now: Nanos) -> bool {
        now >= self.thorough
    }

    /// Notes a look, which has found threads that were `born` or not: a process that starts one may
    /// start more, and waits for it. Thorough looks are rarer where there are many `threads`.
    pub(super) fn looked(&mut self, now: Nanos, born: bool, threads: usize) {
        if self.is_thorough(now) {
            let least = self.follow * THOROUGH;
            self.thorough = now + least.max(between_looks(threads));
        }
        self.every = match born {
            true => self.follow / THOROUGH,
            false => (self.every * 2).min(self.follow),
        };
        self.look = now + self.every;
    }
}

/// The `n`-th length around `length`, within 30 % of it: pieces at equal distances would fall into the slices of the same task
/// again and again. Multiples of the golden ratio cover the range evenly, whatever part of them is looked at.
fn uneven(length: f64, n: u64) -> Nanos {
    let part = (n as f64 * 0.618_033_988_749_895).fract();
    (length * (0.7 + 0.6 * part)) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    /// Wake-ups in `time` with turns of `turn`, and of them those at which no turn ended; pieces; the longest time without a look.
    fn second(turn: Nanos) -> (u64, u64, Nanos, Nanos) {
        let pieces = Some((22_000_000, 3_000_000));
        let mut due = Due::new(0, pieces, 10 * MS);
        let (mut now, mut open, mut opened) = (0, false, 0);
        let (mut extra, mut began, mut looked, mut longest) = (0, 0, 0, 0);
        let mut count = 0;
        while now < 1000 * MS {
            let mut turned = false;
            if due.pick.is_some_and(|at| now >= at) {
                due.pick = Some((now / turn + 1) * turn);
                due.align_piece(now);
                turned = true;
            }
            if due.piece_is_due(now) {
                open = !open;
                if open {
                    began = now;
                    count += 1;
                } else {
                    opened += now - began;
                }
                due.next_piece(now, open, pieces);
            }
            if due.wants_a_look(now) {
                longest = longest.max(now - looked);
                looked = now;
                due.looked(now, false, 1);
            }
            extra += u64::from(!turned);
            // As late as timers are.
            now = due.next() + 30_000;
        }
        (extra, count, opened, longest)
    }

    #[test]
    fn pieces_and_looks_wait_for_the_end_of_a_turn() {
        for (turn, most) in [(200_000, 0), (MS, 0), (5 * MS, 45), (20 * MS, 135)] {
            let (extra, count, opened, longest) = second(turn);
            assert!(extra <= most, "{turn}: {extra} wake-ups");
            assert!((32..=44).contains(&count), "{turn}: {count} pieces");
            let part = opened as f64 / 1e9;
            assert!((0.111..=0.129).contains(&part), "{turn}: {part} open");
            assert!(longest <= 10 * MS + 60_000, "{turn}: {longest}");
        }
    }

    #[test]
    fn without_turns_and_pieces_looks_come_at_their_time() {
        let mut due = Due::new(0, None, 10 * MS);
        due.pick = None;
        assert_eq!(due.next(), 10 * MS);
        assert!(!due.wants_a_look(10 * MS - 1) && due.wants_a_look(10 * MS));
        due.looked(10 * MS, false, 1);
        assert_eq!(due.next(), 20 * MS);
    }

    #[test]
    fn after_a_birth_looks_come_sooner_for_a_while() {
        let mut due = Due::new(0, None, 16 * MS);
        due.pick = None;
        due.looked(16 * MS, true, 1);
        let mut at = due.next();
        assert_eq!(at, 16 * MS + 1_600_000);
        let mut looks = 0;
        while due.next() - at < 16 * MS {
            at = due.next();
            due.looked(at, false, 1);
            looks += 1;
        }
        assert_eq!(looks, 4);
        assert!(!due.is_thorough(159 * MS) && due.is_thorough(160 * MS));
    }

    #[test]
    fn thorough_looks_at_thousands_of_threads_are_rare() {
        let mut due = Due::new(0, None, 10 * MS);
        let mut thorough = 0;
        for at in (10 * MS..=10_000 * MS).step_by((10 * MS) as usize) {
            thorough += u64::from(due.is_thorough(at));
            due.looked(at, false, 2000);
        }
        // Each takes 2,000 × 4 µs.
        assert!((15..=25).contains(&thorough), "{thorough}");
    }
}
