//! Threads and children that are born, processes that end, stop, or change their own scheduling.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use upshift_elevate::events::{Events, Interest};
use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Elevator, Policy, Priority};
use upshift_sched::policies::{Levels, RoundRobin};
use upshift_sched::{
    Config, Nanos, Policy as Decides, Report, SchedError, Scheduler, TaskId, Turn,
};

use crate::world::{Process, attach_all, class, cpu, cpu_time_of, skipped, sleep, turn, until};

fn start(pids: &[i32], children: bool) -> Result<Scheduler, SchedError> {
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    attach_all(&elevator, pids, policy, |_| {}, children)
}

#[test]
fn threads_born_later_join_and_are_restored_like_the_others() {
    let Some(_turn) = turn() else { return };
    let (bearer, spinner) = (Process::start("bear threads"), Process::start("spin"));
    let before = class(bearer.pid());
    let scheduler = start(&[bearer.pid(), spinner.pid()], false).unwrap();
    let count = before.len() + 3;
    let only = CpuSet::only(cpu()).unwrap();
    // With one CPU this thread runs only in open pieces, and then no thread is elevated.
    let alone = std::thread::available_parallelism().unwrap().get() == 1;
    until("all threads are elevated on the CPU", || {
        let now = class(bearer.pid());
        let elevated = |tid| Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated());
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == count)
            && now.len() == count
            && now
                .iter()
                .all(|&(tid, _, cpus)| (alone || elevated(tid)) && cpus == only)
    });
    sleep(200);
    let (report, _) = scheduler.stop().unwrap();
    assert_eq!(report.tasks[0].threads, count);
    assert!((0.1..0.65).contains(&report.tasks[0].share), "{report:#?}");
    for (tid, attr, cpus) in class(bearer.pid()) {
        assert_eq!((attr, cpus), (before[0].1, before[0].2), "thread {tid}");
    }
}

#[test]
fn a_thread_that_replaces_another_joins_too() {
    let Some(_turn) = turn() else { return };
    if std::thread::available_parallelism().unwrap().get() == 1 {
        // This thread would run only in open pieces, and then no thread is elevated.
        return skipped("needs two CPUs");
    }
    let (replacer, spinner) = (Process::start("replace threads"), Process::start("spin"));
    let before = class(replacer.pid());
    let scheduler = start(&[replacer.pid(), spinner.pid()], false).unwrap();
    until("a successor is elevated", || {
        let now = class(replacer.pid());
        let new = |tid: i32| before.iter().all(|&(known, ..)| known != tid);
        let elevated = |tid| Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated());
        now.iter().any(|&(tid, ..)| new(tid) && elevated(tid))
    });
    drop(scheduler);
}

#[test]
fn children_share_their_parents_turn_and_come_back() {
    let Some(_turn) = turn() else { return };
    let (parent, spinner) = (Process::start("fork"), Process::start("spin"));
    let before = class(parent.pid());
    let scheduler = start(&[parent.pid(), spinner.pid()], true).unwrap();
    let threads = before.len() + 1;
    until("the child belongs to the task", || {
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == threads)
    });
    let pid = parent.pid();
    let listed = (before.iter())
        .map(|(tid, ..)| {
            std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap()
        })
        .collect::<String>();
    let child: i32 = listed.trim().parse().unwrap();
    sleep(300);
    let (report, _) = scheduler.stop().unwrap();
    assert!((0.3..0.7).contains(&report.tasks[0].share), "{report:#?}");
    assert!(!Policy::of(&Kernel, child).unwrap().looks_elevated());
    assert_eq!(Kernel.sched_getaffinity(child).unwrap(), before[0].2);
}

#[test]
fn a_process_that_execs_from_a_thread_stays_in_its_task_and_comes_back() {
    let Some(_turn) = turn() else { return };
    let (execs, spinner) = (Process::start("exec"), Process::start("spin"));
    let before = class(execs.pid());
    let scheduler = start(&[execs.pid(), spinner.pid()], false).unwrap();
    let name = format!("/proc/{}/comm", execs.pid());
    until("it has become another program", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    });
    until("its one thread is known", || {
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == 1)
    });
    scheduler.stop().unwrap();
    let after = class(execs.pid());
    assert_eq!((after.len(), after[0].0), (1, execs.pid()));
    assert_eq!((after[0].1, after[0].2), (before[0].1, before[0].2));
}

/// A process that is not a child of this one, killed when dropped.
struct KilledOnDrop(i32);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // SAFETY: a process that a child of ours waits for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

#[test]
fn a_process_whose_main_thread_has_ended_can_be_scheduled() {
    let Some(_turn) = turn() else { return };
    let mut parent = Process::start("end the main thread");
    let pid = parent.number("child ");
    let killed = KilledOnDrop(pid);
    until("its main thread has ended", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("State:\tZ") && status.contains("Threads:\t2")
    });
    let scheduler = start(&[pid], false).unwrap();
    until("both threads are scheduled", || {
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == 2)
    });
    drop(killed);
    until("its end is the end", || scheduler.is_finished());
}

#[test]
fn a_scheduler_ends_when_all_its_processes_have_ended() {
    let Some(_turn) = turn() else { return };
    let (brief, other) = (
        Process::start("spin briefly"),
        Process::start("spin briefly"),
    );
    let scheduler = start(&[brief.pid(), other.pid()], false).unwrap();
    until("it ends by itself", || scheduler.is_finished());
    let (report, _) = scheduler.wait().unwrap();
    assert!(report.tasks.iter().all(|task| task.threads == 0));
}

#[test]
fn a_stopped_task_leaves_its_time_to_the_others() {
    let Some(_turn) = turn() else { return };
    let (stopped, spinner) = (Process::start("spin"), Process::start("spin"));
    // SAFETY: a signal to a child of ours.
    unsafe { libc::kill(stopped.pid(), libc::SIGSTOP) };
    let scheduler = start(&[stopped.pid(), spinner.pid()], false).unwrap();
    sleep(300);
    let (report, _) = scheduler.stop().unwrap();
    assert!(report.tasks[1].share > 0.8, "{report:#?}");
}

#[test]
fn a_thread_that_leaves_its_cpu_or_its_policy_is_brought_back() {
    let Some(_turn) = turn() else { return };
    let (escaper, spinner) = (Process::start("escape"), Process::start("spin"));
    let before = class(escaper.pid());
    let scheduler = start(&[escaper.pid(), spinner.pid()], false).unwrap();
    sleep(800);
    let (report, _) = scheduler.stop().unwrap();
    assert!(report.tasks[0].share > 0.02, "{report:#?}");
    assert!(report.tasks[1].share > 0.3, "{report:#?}");
    let after = class(escaper.pid());
    let policies =
        |all: &[(i32, _, CpuSet)]| all.iter().map(|&(_, attr, _)| attr).collect::<Vec<_>>();
    assert_eq!(policies(&before), policies(&after));
}

#[test]
fn impossible_processes_are_refused_with_the_reason() {
    let Some(_turn) = turn() else { return };
    let own = std::process::id() as i32;
    let spinner = Process::start("spin");
    let before = class(spinner.pid());
    let refused = |pids: &[i32]| start(pids, false).map(|_| ()).unwrap_err().to_string();
    assert!(refused(&[4_194_305]).contains("no process 4194305"));
    assert!(refused(&[spinner.pid(), own]).contains("scheduler itself"));
    assert!(refused(&[spinner.pid(), spinner.pid()]).contains("two tasks"));
    let kernel = !std::path::Path::new("/proc/2").exists()
        || refused(&[spinner.pid(), 2]).contains("kernel");
    assert!(kernel);
    // SAFETY: a plain call that cannot fail.
    for ancestor in [1, unsafe { libc::getppid() }] {
        assert!(refused(&[ancestor]).contains("has started this one"));
    }
    assert_eq!(class(spinner.pid()), before);
    let limit = libc::rlimit {
        rlim_cur: 5_000_000,
        rlim_max: 5_000_000,
    };
    // SAFETY: a live structure.
    let done = unsafe {
        libc::prlimit(
            spinner.pid(),
            libc::RLIMIT_RTTIME,
            &raw const limit,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0);
    assert!(refused(&[spinner.pid()]).contains("RLIMIT_RTTIME"));
}

/// Asserts that `restore` takes less than a quarter of the throttling period at least once in five
/// times: a thread below a computing task would have to wait for the throttling of SCHED_FIFO.
fn does_not_wait(mut restore: impl FnMut() -> Duration) {
    let period = std::fs::read_to_string("/proc/sys/kernel/sched_rt_period_us").unwrap();
    let period = Duration::from_micros(period.trim().parse().unwrap());
    let best = (0..5).map(|_| restore()).min().unwrap();
    assert!(best < period / 4, "{best:?}");
}

#[test]
fn restoring_a_task_that_computes_does_not_wait() {
    let Some(_turn) = turn() else { return };
    let spinner = Process::start("spin");
    does_not_wait(|| {
        let scheduler = start(&[spinner.pid()], false).unwrap();
        let began = Instant::now();
        drop(scheduler);
        began.elapsed()
    });
}

/// A policy that favours the first task and panics at the third question.
#[derive(Debug, Default)]
struct Panics {
    asked: u32,
    at: Arc<OnceLock<Instant>>,
}

impl Decides for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }
    fn added(&mut self, _task: TaskId, _now: Nanos) {}
    fn removed(&mut self, _task: TaskId, _now: Nanos) {}
    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        self.asked += 1;
        if self.asked == 3 {
            let _ = self.at.set(Instant::now());
            panic!("a test: the policy panics");
        }
        turn.favour(TaskId(0));
        turn.until(now + 1_000_000);
    }
}

#[test]
fn the_tasks_of_a_policy_that_panics_are_restored_at_once() {
    let Some(_turn) = turn() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(class);
    does_not_wait(|| {
        let elevator = Elevator::with_guardian().unwrap();
        let policy = Panics::default();
        let at = Arc::clone(&policy.at);
        let policy = Box::new(policy);
        let scheduler = attach_all(
            &elevator,
            &pids,
            policy,
            |c| c.open_pieces.part = 0.0,
            false,
        );
        let error = scheduler.unwrap().wait().unwrap_err();
        let took = at.get().unwrap().elapsed();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert_eq!(pids.map(class), before);
        took
    });
}

#[test]
fn a_lock_of_an_ordinary_user_keeps_no_scheduler_out() {
    let Some(_turn) = turn() else { return };
    // SAFETY: a plain call that cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("needs root");
    }
    let spinner = Process::start("spin");
    let mut locker = Process::start_with("lock", &spinner.pid().to_string());
    locker.wait_for("locked");
    let scheduler = start(&[spinner.pid()], false).unwrap();
    // A lock of the own user is that of a scheduler.
    let second = start(&[spinner.pid()], false).map(drop).unwrap_err();
    assert!(second.to_string().contains("two tasks"), "{second}");
    drop(scheduler);
}

#[test]
fn a_lock_that_an_ended_process_has_left_keeps_no_scheduler_out() {
    let Some(_turn) = turn() else { return };
    // SAFETY: a plain call that cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("needs root");
    }
    let spinner = Process::start("spin");
    let mut locker = Process::start_with("lock and leave", &spinner.pid().to_string());
    let _holder = KilledOnDrop(locker.number("holder "));
    locker.child.wait().unwrap();
    start(&[spinner.pid()], false).map(drop).unwrap();
}

#[test]
fn a_thread_that_reuses_a_number_is_left_alone() {
    let Some(_turn) = turn() else { return };
    const NEXT: &str = "/proc/sys/kernel/ns_last_pid";
    if Events::subscribe(Interest::Threads).is_err() || !std::path::Path::new(NEXT).exists() {
        return skipped(
            "the kernel does not report threads here, or does not let a program choose the next number",
        );
    }
    let spinner = Process::start("spin");
    for _ in 0..5 {
        let mut swaps = Process::start("swap a thread");
        let scheduler = start(&[swaps.pid(), spinner.pid()], false).unwrap();
        let tid = swaps.number("swapped ");
        let mut other = None;
        for _ in 0..50 {
            std::fs::write(NEXT, (tid - 1).to_string()).unwrap();
            let process = Process::start("spin");
            if process.pid() == tid {
                other = Some(process);
                break;
            }
        }
        let Some(other) = other else {
            return skipped("others fork too fast");
        };
        for _ in 0..40 {
            sleep(5);
            assert!(!Policy::of(&Kernel, other.pid()).unwrap().looks_elevated());
        }
        drop(scheduler);
    }
}

/// Number and length of the windows in which [`left_beside`] measures.
const WINDOWS: usize = 10;
const WINDOW: Duration = Duration::from_millis(200);

/// Returns the time, ms, that a process leaves of a CPU that is not scheduled, in each of
/// [`WINDOWS`]. The child `role`, of an ordinary user and scheduled on another CPU beside a
/// spinner, names that process.
///
/// Other programs of the machine only take time from that process and so increase the result: a
/// lower bound on it holds on a loaded machine. The program beside it has the best nice value, so
/// the result is nearly all time in which the process has no real-time priority.
fn left_beside(role: &str) -> Option<Vec<u64>> {
    // SAFETY: a plain call that cannot fail.
    if unsafe { libc::geteuid() } != 0 || cpu() == 0 {
        skipped("needs root and two CPUs");
        return None;
    }
    let mut attacker = Process::start(role);
    let taker = attacker.number("takes ");
    let spinner = Process::start("spin");
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    let pids = [attacker.pid(), spinner.pid()];
    let scheduler = attach_all(&elevator, &pids, policy, |_| {}, false).unwrap();
    let mut victim = Process::start("gap");
    victim.wait_for("burns");
    // SAFETY: no pointers.
    let niced = unsafe { libc::setpriority(libc::PRIO_PROCESS, victim.pid() as u32, -20) };
    assert_eq!(niced, 0);
    // Where the kernel groups the processes of a session, the nice value of the group counts.
    let _ = std::fs::write(format!("/proc/{}/autogroup", victim.pid()), "-20");
    // The measuring thread sleeps, below the scheduler and above the others, so it is in time.
    let elevated = elevator.elevate_current(Priority::of::<44>()).unwrap();
    let (mut at, mut used) = (Instant::now(), cpu_time_of(taker));
    let mut left = Vec::new();
    for _ in 0..WINDOWS {
        std::thread::sleep(WINDOW);
        let (now, uses) = (Instant::now(), cpu_time_of(taker));
        left.push((now - at).saturating_sub(uses - used).as_millis() as u64);
        (at, used) = (now, uses);
    }
    drop(elevated);
    println!("{role} leaves {left:?} ms of each {WINDOW:?}");
    scheduler.stop().unwrap();
    Some(left)
}

#[test]
fn a_thread_that_migrates_takes_little_of_a_cpu_that_is_not_its_own() {
    let Some(_turn) = turn() else { return };
    if let Some(left) = left_beside("migrate") {
        // The thread has 0.1 s of each 1.1 s, so at least half of the windows are untouched.
        let whole = WINDOW.as_millis() as u64 * 9 / 10;
        let untouched = left.iter().filter(|&&left| left > whole).count();
        assert!(untouched * 2 >= WINDOWS, "{left:?}");
    }
}

#[test]
fn a_thread_that_lends_its_priority_elsewhere_leaves_ordinary_programs_their_pieces() {
    let Some(_turn) = turn() else { return };
    if let Some(left) = left_beside("lend") {
        // In an open piece nothing is lent, so nearly 12 % is left in each window. Without pieces
        // the kernel's throttling leaves 50 ms of each second at once, and seven windows have
        // nothing.
        let some = WINDOW.as_millis() as u64 / 50;
        let fed = left.iter().filter(|&&left| left >= some).count();
        assert!(fed * 10 >= WINDOWS * 8, "{left:?}");
    }
}

#[test]
fn a_thread_for_each_request_is_as_urgent_as_its_process() {
    let Some(_turn) = turn() else { return };
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return skipped("needs two CPUs");
    }
    if Events::subscribe(Interest::Threads).is_err() {
        return skipped("the kernel does not report threads here");
    }
    let (server, spinner) = (Process::start("serve by threads"), Process::start("spin"));
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(
        Levels::new(4_000_000)
            .level(TaskId(0), 0)
            .level(TaskId(1), 1),
    );
    let pids = [server.pid(), spinner.pid()];
    let scheduler = attach_all(&elevator, &pids, policy, |_| {}, false).unwrap();
    sleep(1000);
    let (report, _) = scheduler.stop().unwrap();
    // Without reports of births each thread waits for the next scan, and the process gets a small
    // part.
    assert!(report.tasks[0].share > 0.4, "{report:#?}");
}

#[test]
fn thousands_of_threads_that_sleep_are_not_moved_at_each_switch() {
    let Some(_turn) = turn() else { return };
    let (crowd, spinner) = (Process::start("crowd"), Process::start("spin"));
    let elevator = Elevator::builder();
    let elevator = elevator.guardian(true).capacity(4096).build().unwrap();
    let policy = Box::new(RoundRobin::new(5_000_000));
    let pids = [crowd.pid(), spinner.pid()];
    let closed = |config: &mut Config| config.open_pieces.part = 0.0;
    let scheduler = attach_all(&elevator, &pids, policy, closed, false).unwrap();
    let threads = |report: &Report| report.tasks[0].threads;
    until("the crowd is elevated", || {
        scheduler.control().report().as_ref().map_or(0, threads) > 1900
    });
    let before = scheduler.control().report().unwrap();
    sleep(2100);
    let (report, _) = scheduler.stop().unwrap();
    let (calls, switches) = (
        report.calls - before.calls,
        report.switches - before.switches,
    );
    assert!(switches > 50, "{report:#?}");
    // The crowd itself is moved a few times, and not at every other switch.
    assert!(calls <= 3 * switches + 3 * 2100, "{calls} for {switches}");
}

#[test]
fn more_threads_than_there_is_room_for_cost_little_and_are_counted() {
    let Some(_turn) = turn() else { return };
    let (crowd, spinner) = (Process::start("crowd"), Process::start("spin"));
    let elevator = Elevator::builder()
        .guardian(true)
        .capacity(64)
        .build()
        .unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    let pids = [crowd.pid(), spinner.pid()];
    let scheduler = attach_all(&elevator, &pids, policy, |_| {}, false).unwrap();
    until("the crowd is there", || class(crowd.pid()).len() > 1500);
    let before = scheduler
        .control()
        .report()
        .map_or(0, |report| report.own_cpu_time);
    let began = Instant::now();
    sleep(2100);
    let took = began.elapsed().as_nanos() as u64;
    let (report, _) = scheduler.stop().unwrap();
    let own = report.own_cpu_time - before;
    println!(
        "own CPU time {} of {} ms",
        own / 1_000_000,
        took / 1_000_000
    );
    // The bound allows for unoptimised code; work for each thread without room would exceed it.
    assert!(own * 2 < took, "{own} of {took} ns");
    assert!(report.tasks[0].threads <= 64);
    assert!(report.tasks[0].refused > 1400, "{report:#?}");
}
