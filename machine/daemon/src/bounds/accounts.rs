//! What of each CPU's time is accounted for: what is elevated by the rules has used it, or no thread has.
//!
//! What threads used that ended before they were looked at is in no record of the kernel's. It is *unknown*, at most the time since the last look, and
//! kept apart, by user: if it counted as used, a user that ends threads would have an excuse for whatever else takes the CPU; if it were
//! forgotten, others would be blamed for it.
//!
//! What no thread has (interrupts, and what the host of a virtual machine takes) is in no thread's CPU time either, and in `/proc/stat` only, which is
//! dear on large machines. So it is read twice a second, and schedulers take it to go on as it was. Interrupts explain nothing that is suspicious,
//! because the kernel handles packets for the user that sends them.
//!
//! A CPU has *stood still* if its scheduler was kept from it, which is above all that the daemon elevates: by the kernel's throttling of
//! real-time threads, the host, or another real-time program. That explains why it was taken.
//!
//! Adding what is known is one atomic addition; a lock is taken where a thread has ended, and by the reader twice a second.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A scheduler that comes so much later than it is to was kept from its CPU.
const STILL: Duration = Duration::from_millis(10);

/// The longest line of a CPU in `/proc/stat`: ten numbers of 64 bits.
const LINE: usize = 256;

/// See the module.
#[derive(Debug)]
pub(crate) struct Accounts {
    began: Instant,
    cpus: Vec<Account>,
    /// ns of assigned processes and of the daemon's threads that are not of one CPU, on any CPU.
    anywhere: AtomicU64,
    /// `/proc/stat`, open, since elevated threads look up nothing in `/proc`.
    stat: Option<File>,
    /// When that was read last, and what it said.
    last: Mutex<(Instant, HashMap<usize, Outside>)>,
}

/// The time of a CPU that no thread has had since the machine started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Outside {
    /// It went to interrupts, hard and soft.
    interrupts: Duration,
    /// It went to other machines of the host.
    host: Duration,
}

#[derive(Debug, Default)]
struct Account {
    /// ns of registered processes and of the CPU's scheduler.
    known: AtomicU64,
    /// ns that may be a user's.
    unknown: Mutex<HashMap<u32, Duration>>,
    /// Millionths of the time that no thread had between the last two readings of `/proc/stat`.
    outside: AtomicU64,
    /// When it stood still last: ns since [`Accounts::began`], 0: never.
    stood_still: AtomicU64,
    /// Since when its canary owes an answer: ns since [`Accounts::began`], 0: it does not.
    silent_since: AtomicU64,
}

impl Account {
    fn unknown(&self) -> MutexGuard<'_, HashMap<u32, Duration>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accounts {
    /// Opens `/proc/stat`.
    pub(crate) fn new(cpus: usize) -> Accounts {
        Accounts {
            began: Instant::now(),
            cpus: (0..cpus).map(|_| Account::default()).collect(),
            anywhere: AtomicU64::new(0),
            stat: File::open("/proc/stat").ok(),
            last: Mutex::new((Instant::now(), HashMap::new())),
        }
    }

    /// What is elevated by the rules has used so much more of `cpu`; `None`: of any.
    pub(crate) fn add(&self, cpu: Option<usize>, time: Duration) {
        let account = cpu.map_or(Some(&self.anywhere), |cpu| {
            self.cpus.get(cpu).map(|it| &it.known)
        });
        if let Some(account) = account {
            account.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }

    /// Threads of `user` that have ended may have used so much of `cpu`.
    pub(crate) fn add_unknown(&self, cpu: usize, user: u32, time: Duration) {
        if let Some(account) = self.cpus.get(cpu) {
            *account.unknown().entry(user).or_default() += time;
        }
    }

    /// The scheduler of `cpu`, which was to go on at `due`, does at `now`. Returns for how long the CPU stood still: 0 if the scheduler is no
    /// later than what the kernel does in one go may make it.
    pub(crate) fn goes_on(&self, cpu: usize, due: Instant, now: Instant) -> Duration {
        let late = now.saturating_duration_since(due);
        if late <= STILL {
            return Duration::ZERO;
        }
        if let Some(account) = self.cpus.get(cpu) {
            account.stood_still.store(self.ns(now), Relaxed);
        }
        late
    }

    /// The canary of `cpu`, which was woken before `now`, owes an answer.
    pub(crate) fn asks(&self, cpu: usize, now: Instant) {
        if let Some(account) = self.cpus.get(cpu) {
            account.silent_since.store(self.ns(now), SeqCst);
        }
    }

    /// The canary of `cpu` answers.
    pub(crate) fn answers(&self, cpu: usize) {
        if let Some(account) = self.cpus.get(cpu) {
            account.silent_since.store(0, SeqCst);
        }
    }

    /// For how long before `now` no ordinary thread has had `cpu`, as far as its canary says.
    pub(crate) fn silence(&self, cpu: usize, now: Instant) -> Duration {
        let since = self.cpus.get(cpu).map(|it| it.silent_since.load(SeqCst));
        let of = |ns: u64| {
            now.saturating_duration_since(self.began)
                .saturating_sub(Duration::from_nanos(ns))
        };
        since.filter(|&ns| ns > 0).map_or(Duration::ZERO, of)
    }

    fn ns(&self, now: Instant) -> u64 {
        (now.saturating_duration_since(self.began).as_nanos() as u64).max(1)
    }

    /// Whether `cpu` has stood still since then.
    pub(crate) fn has_stood_still(&self, cpu: usize, since: Instant) -> bool {
        let when = self
            .cpus
            .get(cpu)
            .map_or(0, |it| it.stood_still.load(Relaxed));
        when > 0 && self.began + Duration::from_nanos(when) >= since
    }

    /// Of each CPU's time so far, what is elevated by the rules has had, as far as that is known, and what the host has taken.
    pub(crate) fn explained(&self) -> impl Fn(usize) -> Duration {
        let outside = self.outside();
        self.note(&outside, Instant::now());
        let anywhere = self.anywhere.load(Relaxed);
        move |cpu| {
            let here = self.cpus.get(cpu).map_or(0, |it| it.known.load(Relaxed));
            Duration::from_nanos(here + anywhere)
                + outside.get(&cpu).map_or(Duration::ZERO, |it| it.host)
        }
    }

    /// How much of the last `elapsed` no thread of `cpu` had, as far as it went on as before.
    pub(crate) fn lost(&self, cpu: usize, elapsed: Duration) -> Duration {
        let part = self.cpus.get(cpu).map_or(0, |it| it.outside.load(Relaxed));
        elapsed.mul_f64(part as f64 / 1e6)
    }

    fn note(&self, outside: &HashMap<usize, Outside>, now: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let elapsed = now.saturating_duration_since(last.0);
        // Its ticks are of 10 ms.
        if elapsed < Duration::from_millis(100) {
            return;
        }
        for (cpu, account) in self.cpus.iter().enumerate() {
            let (Some(all), Some(before)) = (outside.get(&cpu), last.1.get(&cpu)) else {
                continue;
            };
            let lost = (all.host + all.interrupts).saturating_sub(before.host + before.interrupts);
            let part = lost.div_duration_f64(elapsed);
            account.outside.store((part.min(1.0) * 1e6) as u64, Relaxed);
        }
        *last = (now, outside.clone());
    }

    /// One system call: 20 µs with two CPUs.
    fn outside(&self) -> HashMap<usize, Outside> {
        let mut text = vec![0; LINE * (self.cpus.len() + 1)];
        let read = self.stat.as_ref().map(|stat| stat.read_at(&mut text, 0));
        let length = read.and_then(Result::ok).unwrap_or(0);
        std::str::from_utf8(&text[..length]).map_or_else(|_| HashMap::new(), outside_of_threads)
    }

    /// The users of which `least` is not known of `cpu` since [`Accounts::take_unknown`].
    pub(crate) fn evasive(&self, cpu: usize, least: Duration) -> Vec<u32> {
        let Some(account) = self.cpus.get(cpu) else {
            return Vec::new();
        };
        let unknown = account.unknown();
        let many = unknown.iter().filter(|&(_, &time)| time >= least);
        many.map(|(&user, _)| user).collect()
    }

    /// What is not known of `cpu` since the last call, by user.
    pub(crate) fn take_unknown(&self, cpu: usize) -> HashMap<u32, Duration> {
        let account = self.cpus.get(cpu);
        account.map_or_else(HashMap::new, |it| std::mem::take(&mut it.unknown()))
    }
}

/// Of each CPU; `stat` is the beginning of `/proc/stat`, which counts hundredths of a second.
fn outside_of_threads(stat: &str) -> HashMap<usize, Outside> {
    let of_cpu = |line: &str| {
        let mut words = line.strip_suffix('\n')?.strip_prefix("cpu")?.split(' ');
        let cpu = words.next()?.parse().ok()?;
        // After user, nice, system, idle and iowait: irq, softirq and steal.
        let mut ticks = words.skip(5).map_while(|word| word.parse::<u64>().ok());
        let mut next = || Some(Duration::from_millis(ticks.next()?.saturating_mul(10)));
        let interrupts = next()? + next()?;
        let host = next()?;
        Some((cpu, Outside { interrupts, host }))
    };
    // The first line is of all CPUs.
    stat.split_inclusive('\n')
        .skip(1)
        .map_while(of_cpu)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_is_kept_by_user_and_taken_once() {
        let ms = Duration::from_millis;
        let accounts = Accounts::new(2);
        accounts.add(Some(1), ms(3));
        accounts.add(None, ms(4));
        accounts.add_unknown(1, 7, ms(5));
        accounts.add_unknown(1, 7, ms(5));
        accounts.add_unknown(1, 8, ms(1));
        // A CPU that there is not.
        accounts.add(Some(2), ms(9));
        accounts.add_unknown(2, 7, ms(9));
        let empty = Accounts::new(2);
        let nothing = empty.explained();
        let explained = accounts.explained();
        assert!(explained(0) >= nothing(0) + ms(4));
        assert!(explained(1) >= nothing(1) + ms(7));
        assert_eq!(accounts.take_unknown(0), HashMap::new());
        assert_eq!(accounts.evasive(1, ms(2)), [7]);
        let unknown = HashMap::from([(7, ms(10)), (8, ms(1))]);
        assert_eq!(accounts.take_unknown(1), unknown);
        assert_eq!(accounts.take_unknown(1), HashMap::new());
    }

    #[test]
    fn a_cpu_whose_scheduler_comes_late_has_stood_still() {
        let (ms, accounts) = (Duration::from_millis, Accounts::new(2));
        let due = Instant::now() + ms(100);
        assert_eq!(accounts.goes_on(0, due, due + ms(9)), ms(0));
        assert_eq!(accounts.goes_on(1, due, due), ms(0));
        assert!(!accounts.has_stood_still(0, due) && !accounts.has_stood_still(1, due));
        assert_eq!(accounts.goes_on(1, due, due + ms(11)), ms(11));
        assert!(!accounts.has_stood_still(0, due) && accounts.has_stood_still(1, due));
        assert!(!accounts.has_stood_still(1, due + ms(12)));
    }

    #[test]
    fn a_cpu_is_silent_from_the_question_to_the_answer() {
        let (ms, accounts) = (Duration::from_millis, Accounts::new(1));
        let now = Instant::now();
        assert_eq!(accounts.silence(0, now), ms(0));
        accounts.asks(0, now + ms(5));
        assert_eq!(accounts.silence(0, now + ms(25)), ms(20));
        assert_eq!(accounts.silence(0, now), ms(0));
        accounts.answers(0);
        assert_eq!(accounts.silence(0, now + ms(30)), ms(0));
        // A CPU that there is not.
        accounts.asks(1, now);
        assert_eq!(accounts.silence(1, now + ms(30)), ms(0));
    }

    #[test]
    fn what_no_thread_has_is_taken_to_go_on() {
        let (ms, now) = (Duration::from_millis, Instant::now());
        let accounts = Accounts::new(2);
        assert_eq!(accounts.lost(0, ms(36)), ms(0));
        let of = |interrupts: u64, host: u64| Outside {
            interrupts: ms(interrupts),
            host: ms(host),
        };
        accounts.note(
            &HashMap::from([(0, of(9, 900)), (1, of(50, 0))]),
            now + ms(500),
        );
        accounts.note(
            &HashMap::from([(0, of(59, 950)), (1, of(50, 0))]),
            now + ms(1000),
        );
        // Too soon to say anything.
        accounts.note(&HashMap::from([(0, of(69, 950))]), now + ms(1010));
        assert_eq!(accounts.lost(0, ms(40)), ms(8));
        assert_eq!(accounts.lost(1, ms(40)), ms(0));
    }

    #[test]
    fn time_of_interrupts_and_of_the_host_is_no_threads() {
        let text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 2 3 4 5 6 7 8 9 9\ncpu3 1 1 1 1 1 0 0 2 0 0\ncpu4 1 1 1 1 1 1 1 1";
        let outside = outside_of_threads(text);
        let of = |interrupts: u64, host: u64| Outside {
            interrupts: Duration::from_millis(interrupts),
            host: Duration::from_millis(host),
        };
        assert_eq!(outside, HashMap::from([(0, of(130, 80)), (3, of(0, 20))]));
        assert_eq!(outside_of_threads("cpu 1\nintr 1\n"), HashMap::new());
        assert!(!Accounts::new(1).outside().is_empty());
    }
}
