//! Tests of new threads and children, of processes that end, stop or change their own scheduling,
//! and of attacks by threads.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use upshift_elevate::events::{Events, Interest};
use upshift_elevate::sys::{CpuSet, Kernel, Sys};
use upshift_elevate::{Elevator, Policy, Priority};
use upshift_sched::policies::{Levels, RoundRobin};
use upshift_sched::{
    Config, Nanos, Policy as Decides, Report, SchedError, Scheduler, TaskId, Turn,
};

use crate::support::{
    Process, cpu_time_of, scheduling_of, serial_test, skipped, sleep, start_scheduler, test_cpu,
    wait_until,
};

/// Starts a round-robin scheduler of the processes `pids`.
fn start(pids: &[i32], children: bool) -> Result<Scheduler, SchedError> {
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    start_scheduler(&elevator, pids, policy, |_| {}, children)
}

#[test]
fn threads_that_start_later_join_and_are_restored() {
    let Some(_guard) = serial_test() else { return };
    let (starter, spinner) = (Process::start("start-threads"), Process::start("spin"));
    let before = scheduling_of(starter.pid());
    let scheduler = start(&[starter.pid(), spinner.pid()], false).unwrap();
    let count = before.len() + 3;
    let only = CpuSet::only(test_cpu()).unwrap();
    // On a machine with one CPU, this thread runs only in open pieces (the time that the scheduler
    // leaves to other programs), in which no thread is elevated.
    let has_one_cpu = std::thread::available_parallelism().unwrap().get() == 1;
    wait_until("all threads are elevated on the CPU", || {
        let now = scheduling_of(starter.pid());
        let elevated = |tid| Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated());
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == count)
            && now.len() == count
            && now
                .iter()
                .all(|&(tid, _, cpus)| (has_one_cpu || elevated(tid)) && cpus == only)
    });
    sleep(200);
    let (report, _) = scheduler.stop().unwrap();
    assert_eq!(report.tasks[0].threads, count);
    assert!((0.1..0.65).contains(&report.tasks[0].share), "{report:#?}");
    for (tid, attr, cpus) in scheduling_of(starter.pid()) {
        assert_eq!((attr, cpus), (before[0].1, before[0].2), "thread {tid}");
    }
}

#[test]
fn a_thread_that_replaces_another_thread_joins() {
    let Some(_guard) = serial_test() else { return };
    if std::thread::available_parallelism().unwrap().get() == 1 {
        // This thread would run only in open pieces, in which no thread is elevated.
        return skipped("needs two CPUs");
    }
    let (replacer, spinner) = (Process::start("replace-threads"), Process::start("spin"));
    let before = scheduling_of(replacer.pid());
    let scheduler = start(&[replacer.pid(), spinner.pid()], false).unwrap();
    wait_until("a successor is elevated", || {
        let now = scheduling_of(replacer.pid());
        let new = |tid: i32| before.iter().all(|&(known, ..)| known != tid);
        let elevated = |tid| Policy::of(&Kernel, tid).is_ok_and(|policy| policy.looks_elevated());
        now.iter().any(|&(tid, ..)| new(tid) && elevated(tid))
    });
    drop(scheduler);
}

#[test]
fn children_share_the_turn_of_their_parent_and_are_restored() {
    let Some(_guard) = serial_test() else { return };
    let (parent, spinner) = (Process::start("fork-spinner"), Process::start("spin"));
    let before = scheduling_of(parent.pid());
    let scheduler = start(&[parent.pid(), spinner.pid()], true).unwrap();
    let threads = before.len() + 1;
    wait_until("the child belongs to the task", || {
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
fn a_process_that_execs_from_a_thread_stays_in_its_task_and_is_restored() {
    let Some(_guard) = serial_test() else { return };
    let (executor, spinner) = (Process::start("exec"), Process::start("spin"));
    let before = scheduling_of(executor.pid());
    let scheduler = start(&[executor.pid(), spinner.pid()], false).unwrap();
    let name = format!("/proc/{}/comm", executor.pid());
    wait_until("the process executes another program", || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    });
    wait_until("the task has one thread", || {
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == 1)
    });
    scheduler.stop().unwrap();
    let after = scheduling_of(executor.pid());
    assert_eq!((after.len(), after[0].0), (1, executor.pid()));
    assert_eq!((after[0].1, after[0].2), (before[0].1, before[0].2));
}

/// A process that is not a child of this test process. Killed when dropped.
struct KilledOnDrop(i32);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // SAFETY: the parent of the process has not waited for it, so its pid is not reused.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

#[test]
fn a_process_whose_main_thread_has_ended_can_be_scheduled() {
    let Some(_guard) = serial_test() else { return };
    let mut parent = Process::start("end-main-thread");
    let pid = parent.number("child ");
    let killed = KilledOnDrop(pid);
    wait_until("the main thread has ended", || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        status.contains("State:\tZ") && status.contains("Threads:\t2")
    });
    let scheduler = start(&[pid], false).unwrap();
    wait_until("both threads are scheduled", || {
        let report = scheduler.control().report();
        report.is_some_and(|report| report.tasks[0].threads == 2)
    });
    drop(killed);
    wait_until("the scheduler ends with the process", || {
        scheduler.is_finished()
    });
}

#[test]
fn a_scheduler_ends_when_all_its_processes_have_ended() {
    let Some(_guard) = serial_test() else { return };
    let (first, second) = (
        Process::start("spin-briefly"),
        Process::start("spin-briefly"),
    );
    let scheduler = start(&[first.pid(), second.pid()], false).unwrap();
    wait_until("the scheduler ends", || scheduler.is_finished());
    let (report, _) = scheduler.wait().unwrap();
    assert!(report.tasks.iter().all(|task| task.threads == 0));
}

#[test]
fn a_stopped_task_leaves_its_time_to_the_others() {
    let Some(_guard) = serial_test() else { return };
    let (stopped, spinner) = (Process::start("spin"), Process::start("spin"));
    // SAFETY: the child has not been waited for, so its pid is not reused.
    unsafe { libc::kill(stopped.pid(), libc::SIGSTOP) };
    let scheduler = start(&[stopped.pid(), spinner.pid()], false).unwrap();
    sleep(300);
    let (report, _) = scheduler.stop().unwrap();
    assert!(report.tasks[1].share > 0.8, "{report:#?}");
}

#[test]
fn a_thread_that_leaves_its_cpu_or_its_policy_is_moved_back() {
    let Some(_guard) = serial_test() else { return };
    let (leaver, spinner) = (
        Process::start("leave-cpu-and-class"),
        Process::start("spin"),
    );
    let before = scheduling_of(leaver.pid());
    let scheduler = start(&[leaver.pid(), spinner.pid()], false).unwrap();
    sleep(800);
    let (report, _) = scheduler.stop().unwrap();
    assert!(report.tasks[0].share > 0.02, "{report:#?}");
    assert!(report.tasks[1].share > 0.3, "{report:#?}");
    let after = scheduling_of(leaver.pid());
    let policies =
        |all: &[(i32, _, CpuSet)]| all.iter().map(|&(_, attr, _)| attr).collect::<Vec<_>>();
    assert_eq!(policies(&before), policies(&after));
}

#[test]
fn processes_that_cannot_be_scheduled_are_refused_with_the_reason() {
    let Some(_guard) = serial_test() else { return };
    let own = std::process::id() as i32;
    let spinner = Process::start("spin");
    let before = scheduling_of(spinner.pid());
    let refused = |pids: &[i32]| start(pids, false).map(|_| ()).unwrap_err().to_string();
    assert!(refused(&[4_194_305]).contains("no process 4194305"));
    assert!(refused(&[spinner.pid(), own]).contains("scheduler itself"));
    assert!(refused(&[spinner.pid(), spinner.pid()]).contains("two tasks"));
    let kernel = !std::path::Path::new("/proc/2").exists()
        || refused(&[spinner.pid(), 2]).contains("kernel");
    assert!(kernel);
    // SAFETY: the call has no arguments and cannot fail.
    for ancestor in [1, unsafe { libc::getppid() }] {
        assert!(refused(&[ancestor]).contains("has started this one"));
    }
    assert_eq!(scheduling_of(spinner.pid()), before);
    let limit = libc::rlimit {
        rlim_cur: 5_000_000,
        rlim_max: 5_000_000,
    };
    // SAFETY: `limit` is valid for the duration of the call.
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

/// Asserts that `restore` takes less than a quarter of the throttling period in at least one of
/// five runs. A thread with a lower priority than a computing task would have to wait for the
/// throttling of SCHED_FIFO.
fn assert_restores_quickly(mut restore: impl FnMut() -> Duration) {
    let period = std::fs::read_to_string("/proc/sys/kernel/sched_rt_period_us").unwrap();
    let period = Duration::from_micros(period.trim().parse().unwrap());
    let shortest = (0..5).map(|_| restore()).min().unwrap();
    assert!(
        shortest < period / 4,
        "all threads are restored after {shortest:?} at the earliest"
    );
}

#[test]
fn restoring_a_computing_task_does_not_wait() {
    let Some(_guard) = serial_test() else { return };
    let spinner = Process::start("spin");
    assert_restores_quickly(|| {
        let scheduler = start(&[spinner.pid()], false).unwrap();
        let began = Instant::now();
        drop(scheduler);
        began.elapsed()
    });
}

/// A policy that favours the first task, and panics in the third call of `pick`.
#[derive(Debug, Default)]
struct Panics {
    picks: u32,
    panicked_at: Arc<OnceLock<Instant>>,
}

impl Decides for Panics {
    fn name(&self) -> &'static str {
        "panics"
    }
    fn added(&mut self, _task: TaskId, _now: Nanos) {}
    fn removed(&mut self, _task: TaskId, _now: Nanos) {}
    fn pick(&mut self, now: Nanos, turn: &mut Turn) {
        self.picks += 1;
        if self.picks == 3 {
            let _ = self.panicked_at.set(Instant::now());
            panic!("a test: the policy panics");
        }
        turn.favour(TaskId(0));
        turn.end_at(now + 1_000_000);
    }
}

#[test]
fn the_tasks_of_a_policy_that_panics_are_restored_at_once() {
    let Some(_guard) = serial_test() else { return };
    let spinners = [Process::start("spin"), Process::start("spin")];
    let pids = spinners.each_ref().map(Process::pid);
    let before = pids.map(scheduling_of);
    assert_restores_quickly(|| {
        let elevator = Elevator::with_guardian().unwrap();
        let policy = Panics::default();
        let panicked_at = Arc::clone(&policy.panicked_at);
        let policy = Box::new(policy);
        let scheduler = start_scheduler(
            &elevator,
            &pids,
            policy,
            |c| c.open_pieces.part = 0.0,
            false,
        );
        let error = scheduler.unwrap().wait().unwrap_err();
        let time_to_restore = panicked_at.get().unwrap().elapsed();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert_eq!(pids.map(scheduling_of), before);
        time_to_restore
    });
}

#[test]
fn a_lock_of_an_ordinary_user_keeps_no_scheduler_out() {
    let Some(_guard) = serial_test() else { return };
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("needs root");
    }
    let spinner = Process::start("spin");
    let mut locker = Process::start_with("lock", &spinner.pid().to_string());
    locker.wait_for("locked");
    let scheduler = start(&[spinner.pid()], false).unwrap();
    // A lock of the same user is the lock of a scheduler.
    let second = start(&[spinner.pid()], false).map(drop).unwrap_err();
    assert!(second.to_string().contains("two tasks"), "{second}");
    drop(scheduler);
}

#[test]
fn a_lock_of_an_ended_process_keeps_no_scheduler_out() {
    let Some(_guard) = serial_test() else { return };
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return skipped("needs root");
    }
    let spinner = Process::start("spin");
    let mut locker = Process::start_with("lock-and-exit", &spinner.pid().to_string());
    let _holder = KilledOnDrop(locker.number("holder "));
    locker.child.wait().unwrap();
    start(&[spinner.pid()], false).map(drop).unwrap();
}

#[test]
fn a_thread_that_reuses_a_tid_is_not_scheduled() {
    let Some(_guard) = serial_test() else { return };
    const LAST_PID_FILE: &str = "/proc/sys/kernel/ns_last_pid";
    if Events::subscribe(Interest::Threads).is_err()
        || !std::path::Path::new(LAST_PID_FILE).exists()
    {
        return skipped(
            "the kernel does not report threads here, or does not let a process choose the next TID",
        );
    }
    let spinner = Process::start("spin");
    for _ in 0..5 {
        let mut swapper = Process::start("swap-thread");
        let scheduler = start(&[swapper.pid(), spinner.pid()], false).unwrap();
        let tid = swapper.number("swapped ");
        let mut second = None;
        for _ in 0..50 {
            std::fs::write(LAST_PID_FILE, (tid - 1).to_string()).unwrap();
            let process = Process::start("spin");
            if process.pid() == tid {
                second = Some(process);
                break;
            }
        }
        let Some(second) = second else {
            return skipped("other processes fork too often to choose a TID");
        };
        for _ in 0..40 {
            sleep(5);
            assert!(!Policy::of(&Kernel, second.pid()).unwrap().looks_elevated());
        }
        drop(scheduler);
    }
}

/// Number of windows in which [`cpu_time_left_beside`] measures.
const WINDOWS: usize = 10;

/// Length of a window.
const WINDOW: Duration = Duration::from_millis(200);

/// Returns the CPU time that an attacker leaves of a CPU without a scheduler, in each of
/// [`WINDOWS`], ms. A child in `role`, of an ordinary user and scheduled on another CPU beside a
/// spinner, prints the pid of the attacker.
///
/// Other programs of the machine only reduce the attacker's time and so increase the result. A
/// lower bound of the result therefore holds on a loaded machine, too. The victim on the attacker's
/// CPU has the best nice value, so the result is nearly all time in which the attacker has no
/// real-time priority.
fn cpu_time_left_beside(role: &str) -> Option<Vec<u64>> {
    // SAFETY: the call has no arguments and cannot fail.
    if unsafe { libc::geteuid() } != 0 || test_cpu() == 0 {
        skipped("needs root and two CPUs");
        return None;
    }
    let mut child = Process::start(role);
    let attacker = child.number("attacker ");
    let spinner = Process::start("spin");
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    let pids = [child.pid(), spinner.pid()];
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    let mut victim = Process::start("spin-on-first-cpu");
    victim.wait_for("spinning");
    // SAFETY: the call has only integer arguments.
    let niced = unsafe { libc::setpriority(libc::PRIO_PROCESS, victim.pid() as u32, -20) };
    assert_eq!(niced, 0);
    // If the kernel schedules sessions as groups, the nice value of the group counts.
    let _ = std::fs::write(format!("/proc/{}/autogroup", victim.pid()), "-20");
    // The measuring thread is less urgent than the scheduler, and more urgent than all other
    // threads, so it wakes in time.
    let elevated = elevator.elevate_current(Priority::of::<44>()).unwrap();
    let (mut began, mut used) = (Instant::now(), cpu_time_of(attacker));
    let mut left = Vec::new();
    for _ in 0..WINDOWS {
        std::thread::sleep(WINDOW);
        let (now, uses) = (Instant::now(), cpu_time_of(attacker));
        left.push((now - began).saturating_sub(uses - used).as_millis() as u64);
        (began, used) = (now, uses);
    }
    drop(elevated);
    println!("{role} leaves {left:?} ms of each {WINDOW:?}");
    scheduler.stop().unwrap();
    Some(left)
}

#[test]
fn a_thread_that_migrates_uses_little_of_another_cpu() {
    let Some(_guard) = serial_test() else { return };
    if let Some(left) = cpu_time_left_beside("migrate-threads") {
        // The thread runs for 0.1 s of each 1.1 s, so at least half of the windows are unaffected.
        let nearly_all = WINDOW.as_millis() as u64 * 9 / 10;
        let unaffected = left.iter().filter(|&&left| left > nearly_all).count();
        assert!(
            unaffected * 2 >= WINDOWS,
            "time left in each window, ms: {left:?}"
        );
    }
}

#[test]
fn a_thread_that_lends_its_priority_leaves_ordinary_programs_their_share() {
    let Some(_guard) = serial_test() else { return };
    if let Some(left) = cpu_time_left_beside("lend-priority") {
        // No priority is lent in an open piece, so nearly 12 % of each window is left. Without open
        // pieces, the kernel's throttling leaves 50 ms of each second at a time, and seven windows
        // have no time left. At least 2 % must be left in eight windows.
        let minimum = WINDOW.as_millis() as u64 / 50;
        let sufficient = left.iter().filter(|&&left| left >= minimum).count();
        assert!(
            sufficient * 10 >= WINDOWS * 8,
            "time left in each window, ms: {left:?}"
        );
    }
}

#[test]
fn a_thread_for_each_request_is_as_urgent_as_its_process() {
    let Some(_guard) = serial_test() else { return };
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return skipped("needs two CPUs");
    }
    if Events::subscribe(Interest::Threads).is_err() {
        return skipped("the kernel does not report threads here");
    }
    let (server, spinner) = (Process::start("thread-per-request"), Process::start("spin"));
    let elevator = Elevator::with_guardian().unwrap();
    let policy = Box::new(
        Levels::new(4_000_000)
            .level(TaskId(0), 0)
            .level(TaskId(1), 1),
    );
    let pids = [server.pid(), spinner.pid()];
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    sleep(1000);
    let (report, _) = scheduler.stop().unwrap();
    // Without reports of new threads, each thread would wait for the next scan, and the process
    // would get a small share.
    assert!(report.tasks[0].share > 0.4, "{report:#?}");
}

#[test]
fn thousands_of_threads_that_sleep_are_not_moved_at_each_switch() {
    let Some(_guard) = serial_test() else { return };
    let (many_threads, spinner) = (Process::start("many-threads"), Process::start("spin"));
    let elevator = Elevator::builder();
    let elevator = elevator.guardian(true).capacity(4096).build().unwrap();
    let policy = Box::new(RoundRobin::new(5_000_000));
    let pids = [many_threads.pid(), spinner.pid()];
    let closed = |config: &mut Config| config.open_pieces.part = 0.0;
    let scheduler = start_scheduler(&elevator, &pids, policy, closed, false).unwrap();
    let threads = |report: &Report| report.tasks[0].threads;
    wait_until("most threads are elevated", || {
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
    // The sleeping threads are moved a few times, and not at every other switch.
    assert!(
        calls <= 3 * switches + 3 * 2100,
        "{calls} calls for {switches} switches"
    );
}

#[test]
fn threads_beyond_the_capacity_cost_little_and_are_counted() {
    let Some(_guard) = serial_test() else { return };
    let (many_threads, spinner) = (Process::start("many-threads"), Process::start("spin"));
    let elevator = Elevator::builder()
        .guardian(true)
        .capacity(64)
        .build()
        .unwrap();
    let policy = Box::new(RoundRobin::new(2_000_000));
    let pids = [many_threads.pid(), spinner.pid()];
    let scheduler = start_scheduler(&elevator, &pids, policy, |_| {}, false).unwrap();
    wait_until("the threads have started", || {
        scheduling_of(many_threads.pid()).len() > 1500
    });
    let before = scheduler
        .control()
        .report()
        .map_or(0, |report| report.own_cpu_time);
    let began = Instant::now();
    sleep(2100);
    let elapsed_ns = began.elapsed().as_nanos() as u64;
    let (report, _) = scheduler.stop().unwrap();
    let used_ns = report.own_cpu_time - before;
    println!(
        "the scheduler used {} of {} ms",
        used_ns / 1_000_000,
        elapsed_ns / 1_000_000
    );
    // The bound allows for unoptimised code; work for each thread beyond the capacity would exceed
    // it.
    assert!(
        used_ns * 2 < elapsed_ns,
        "the scheduler used {used_ns} of {elapsed_ns} ns"
    );
    assert!(report.tasks[0].threads <= 64);
    assert!(report.tasks[0].refused > 1400, "{report:#?}");
}
