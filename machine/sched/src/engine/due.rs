//! [`WorkTimes`] keeps the times at which the loop of the engine has work to do.
//!
//! Turns end at exact times. An open piece ([`OpenPieces`](crate::OpenPieces)) or a scan may happen
//! a little earlier or later, so it is done at the end of a turn if one is near, because an
//! additional wake-up takes more time from the task in front than the scan itself. This module
//! makes no system calls.

use crate::config::scan_interval_for;
use crate::policy::Nanos;

/// The next beginning or end of a piece is moved to the end of a turn that is near, that is, if the
/// difference is at most the time until the piece is due, divided by this number.
const SLACK_DIVISOR: Nanos = 4;

/// Number of scans between two thorough scans; also the factor by which scans are more frequent
/// after threads have started.
const SCANS_PER_THOROUGH: Nanos = 10;

/// Times at which work is due, ns of CLOCK_MONOTONIC.
#[derive(Debug)]
pub(super) struct WorkTimes {
    pub(super) turn_end: Option<Nanos>,
    /// Time of the next beginning or end of a piece.
    piece: Option<Nanos>,
    slack: Nanos,
    piece_began: Nanos,
    pieces: u64,
    scan: Nanos,
    thorough_scan: Nanos,
    /// Maximum time between scans, and the current time between scans.
    max_scan_interval: Nanos,
    scan_interval: Nanos,
    pub(super) publish: Nanos,
}

impl WorkTimes {
    /// Creates the times for an engine that begins at `now`. `pieces` is the closed time and the
    /// open time.
    pub(super) fn new(
        now: Nanos,
        pieces: Option<(Nanos, Nanos)>,
        max_scan_interval: Nanos,
    ) -> WorkTimes {
        WorkTimes {
            turn_end: Some(now),
            piece: pieces.map(|(closed, _)| now + closed),
            slack: pieces.map_or(0, |(closed, _)| closed / SLACK_DIVISOR),
            piece_began: now,
            pieces: 0,
            scan: now + max_scan_interval,
            thorough_scan: now + max_scan_interval * SCANS_PER_THOROUGH,
            max_scan_interval,
            scan_interval: max_scan_interval,
            publish: now,
        }
    }

    pub(super) fn next(&self) -> Nanos {
        let exact = [self.turn_end, self.piece].into_iter().flatten();
        exact.fold(self.scan, Nanos::min)
    }

    /// If a piece begins or ends within the turn that begins at `now`, moves this time to the
    /// nearer end of the turn.
    pub(super) fn align_piece(&mut self, now: Nanos) {
        let (Some(piece), Some(end)) = (self.piece, self.turn_end) else {
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

    /// Records that a piece has begun (`open`) or ended. After a longer piece the CPUs stay closed
    /// for longer.
    pub(super) fn record_piece(&mut self, now: Nanos, open: bool, pieces: Option<(Nanos, Nanos)>) {
        let length = pieces.map(|(closed, length)| {
            if open {
                self.piece_began = now;
                return length;
            }
            self.pieces += 1;
            let relative_length = (now - self.piece_began) as f64 / length.max(1) as f64;
            spread(closed as f64 * relative_length.clamp(0.5, 2.0), self.pieces)
        });
        self.piece = length.map(|length| now + length);
        self.slack = length.unwrap_or(0) / SLACK_DIVISOR;
    }

    /// Postpones a piece that is due at `now` but not needed.
    pub(super) fn postpone_piece(&mut self, now: Nanos, pieces: Option<(Nanos, Nanos)>) {
        self.pieces += 1;
        self.piece = pieces.map(|(closed, _)| now + spread(closed as f64, self.pieces));
        self.slack = pieces.map_or(0, |(closed, _)| closed / SLACK_DIVISOR);
    }

    pub(super) fn wants_scan(&self, now: Nanos) -> bool {
        let next = [self.turn_end, self.piece].into_iter().flatten().min();
        let is_next = next.is_some_and(|next| next > self.scan);
        now >= self.scan || (is_next && now + self.scan_interval / 2 >= self.scan)
    }

    pub(super) fn is_thorough(&self, now: Nanos) -> bool {
        now >= self.thorough_scan
    }

    /// Records a scan. `has_new` means that the scan has found new threads. A process that starts a
    /// thread may start more, so the next scan is then sooner. Thorough scans are rarer if there
    /// are many `threads`.
    pub(super) fn record_scan(&mut self, now: Nanos, has_new: bool, threads: usize) {
        if self.is_thorough(now) {
            let min_interval = self.max_scan_interval * SCANS_PER_THOROUGH;
            self.thorough_scan = now + min_interval.max(scan_interval_for(threads));
        }
        self.scan_interval = if has_new {
            self.max_scan_interval / SCANS_PER_THOROUGH
        } else {
            (self.scan_interval * 2).min(self.max_scan_interval)
        };
        self.scan = now + self.scan_interval;
    }
}

/// Returns the `n`-th length around `length`, within 30 % of it, because pieces at equal distances
/// would repeatedly fall into the slices of the same task. Multiples of the golden ratio cover the
/// range evenly, over any sequence of `n`.
fn spread(length: f64, n: u64) -> Nanos {
    let part = (n as f64 * 0.618_033_988_749_895).fract();
    (length * (0.7 + 0.6 * part)) as Nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = 1_000_000;

    /// Simulates a second with turns of `turn`. Returns the number of wake-ups at which no turn
    /// ended, the number of pieces, the open time, and the longest time without a scan.
    fn simulate_second(turn: Nanos) -> (u64, u64, Nanos, Nanos) {
        let pieces = Some((22_000_000, 3_000_000));
        let mut due = WorkTimes::new(0, pieces, 10 * MS);
        let (mut now, mut open, mut opened) = (0, false, 0);
        let (mut extra, mut began, mut scanned, mut longest) = (0, 0, 0, 0);
        let mut count = 0;
        while now < 1000 * MS {
            let mut has_turned = false;
            if due.turn_end.is_some_and(|at| now >= at) {
                due.turn_end = Some((now / turn + 1) * turn);
                due.align_piece(now);
                has_turned = true;
            }
            if due.piece_is_due(now) {
                open = !open;
                if open {
                    began = now;
                    count += 1;
                } else {
                    opened += now - began;
                }
                due.record_piece(now, open, pieces);
            }
            if due.wants_scan(now) {
                longest = longest.max(now - scanned);
                scanned = now;
                due.record_scan(now, false, 1);
            }
            extra += u64::from(!has_turned);
            // Timers are late.
            now = due.next() + 30_000;
        }
        (extra, count, opened, longest)
    }

    #[test]
    fn pieces_and_scans_wait_for_the_end_of_a_turn() {
        // With long turns, some pieces and scans need a wake-up of their own. In a second, 40
        // pieces begin, which are 12 % of the time, and the time between scans is at most 10 ms.
        // The bounds leave a margin for late timers and for pieces that are moved.
        for (turn, max_extra) in [(200_000, 0), (MS, 0), (5 * MS, 45), (20 * MS, 135)] {
            let (extra, count, opened, longest) = simulate_second(turn);
            assert!(extra <= max_extra, "{turn}: {extra} additional wake-ups");
            assert!((32..=44).contains(&count), "{turn}: {count} pieces");
            let part = opened as f64 / 1e9;
            assert!((0.111..=0.129).contains(&part), "{turn}: {part} open");
            assert!(
                longest <= 10 * MS + 60_000,
                "{turn}: {longest} ns without a scan"
            );
        }
    }

    #[test]
    fn without_turns_and_pieces_scans_come_at_their_time() {
        let mut due = WorkTimes::new(0, None, 10 * MS);
        due.turn_end = None;
        assert_eq!(due.next(), 10 * MS);
        assert!(!due.wants_scan(10 * MS - 1) && due.wants_scan(10 * MS));
        due.record_scan(10 * MS, false, 1);
        assert_eq!(due.next(), 20 * MS);
    }

    #[test]
    fn after_a_thread_has_started_scans_come_sooner_for_a_while() {
        let mut due = WorkTimes::new(0, None, 16 * MS);
        due.turn_end = None;
        due.record_scan(16 * MS, true, 1);
        let mut at = due.next();
        assert_eq!(at, 16 * MS + 1_600_000);
        let mut scans = 0;
        while due.next() - at < 16 * MS {
            at = due.next();
            due.record_scan(at, false, 1);
            scans += 1;
        }
        assert_eq!(scans, 4);
        assert!(!due.is_thorough(159 * MS) && due.is_thorough(160 * MS));
    }

    #[test]
    fn thorough_scans_of_thousands_of_threads_are_rare() {
        let mut due = WorkTimes::new(0, None, 10 * MS);
        let mut thorough = 0;
        for at in (10 * MS..=10_000 * MS).step_by((10 * MS) as usize) {
            thorough += u64::from(due.is_thorough(at));
            due.record_scan(at, false, 2000);
        }
        // A thorough scan takes 2,000 × 4 µs, so one in 400 ms takes 2 % of the time.
        assert!((15..=25).contains(&thorough), "{thorough} thorough scans");
    }
}
