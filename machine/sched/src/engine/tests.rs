//! Tests of the engine on simulated CPUs, which check exact sequences in virtual time.
//!
//! Each simulated task has a priority and a CPU, and sleeps according to a script. A wait gives
//! each CPU to its highest awake task, and to the first of several equal tasks, in steps of 10 µs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::*;
use crate::config::OpenPieces;
use crate::policies::{Edf, Levels, Reservation, RoundRobin, Solo, Weighted};

const STEP: Nanos = 10_000;
const MS: Nanos = 1_000_000;

#[derive(Debug)]
struct Sim {
    now: Nanos,
    end: Nanos,
    tasks: Vec<SimTask>,
    /// Returns whether a thread above all tasks occupies the CPUs at a time.
    stolen: fn(Nanos) -> bool,
    /// CPU time of the thread above all tasks.
    stolen_time: Nanos,
    /// Set if the thread above all tasks is the scheduler.
    by_scheduler: bool,
    /// CPU time of an ordinary thread; `None` if there is none.
    bystander: Option<Nanos>,
    /// A CPU that becomes unavailable, and the time at which it does.
    unplugged: Option<(usize, Nanos)>,
}

#[derive(Debug)]
struct SimTask {
    class: TaskClass,
    cpu: usize,
    used: Nanos,
    threads: usize,
    ends: Option<Nanos>,
    /// Length of a period, and the time for which the task is awake at its beginning; `None` if the
    /// task never sleeps.
    awake: Option<(Nanos, Nanos)>,
    /// Number of times that the engine has asked whether the task wants a CPU.
    asked: u32,
    /// Runs of the task, oldest first: (begin, end).
    runs: Vec<(Nanos, Nanos)>,
}

impl SimTask {
    fn wants_cpu(&self, now: Nanos) -> bool {
        let is_awake = |(period, awake)| now % period < awake;
        self.awake.is_none_or(is_awake) && self.ends.is_none_or(|end| now < end)
    }
}

impl Sim {
    fn check(&self, cpu: usize) -> Result<(), SchedError> {
        let is_gone = |(number, at)| number == cpu && self.now >= at;
        if self.unplugged.is_some_and(is_gone) {
            return Err(SchedError::Cpu {
                cpu,
                error: std::io::Error::from_raw_os_error(libc::EINVAL),
            });
        }
        Ok(())
    }

    fn step(&mut self) {
        let now = self.now;
        let cpus: Vec<usize> = self.tasks.iter().map(|task| task.cpu).collect();
        self.stolen_time += if (self.stolen)(now) { STEP } else { 0 };
        for cpu in 0..2 {
            if !cpus.contains(&cpu) {
                continue;
            }
            let rank = |task: &SimTask| match task.class {
                TaskClass::Fifo(priority) => u32::from(priority.get()) + 2,
                TaskClass::Fair => 1,
                TaskClass::Idle => 0,
            };
            if (self.stolen)(now) {
                continue;
            }
            let ready = |task: &&mut SimTask| task.cpu == cpu && task.wants_cpu(now);
            let mut best: Option<&mut SimTask> = None;
            for task in self.tasks.iter_mut().filter(ready) {
                if best.as_ref().is_none_or(|best| rank(task) > rank(best)) {
                    best = Some(task);
                }
            }
            let ordinary = best.as_ref().is_none_or(|task| rank(task) <= 1);
            // Every second step goes to the ordinary thread.
            if ordinary
                && let Some(used) = &mut self.bystander
                && (now / STEP).is_multiple_of(2)
            {
                *used += STEP;
            } else if let Some(task) = best {
                task.used += STEP;
                match task.runs.last_mut() {
                    Some((_, end)) if *end == now => *end = now + STEP,
                    _ => task.runs.push((now, now + STEP)),
                }
            }
        }
        self.now += STEP;
    }
}

#[derive(Debug, Clone)]
struct SimClock(Rc<RefCell<Sim>>);

impl Clock for SimClock {
    fn own_cpu_time(&self) -> Nanos {
        let sim = self.0.borrow();
        if sim.by_scheduler { sim.stolen_time } else { 0 }
    }

    fn now(&self) -> Nanos {
        self.0.borrow().now
    }

    fn wait(&mut self, until: Option<Nanos>, control: &Control) {
        let mut sim = self.0.borrow_mut();
        let until = until.unwrap_or(sim.end).min(sim.end);
        while sim.now < until {
            sim.step();
            let now = sim.now;
            if sim.tasks.iter().any(|task| task.ends == Some(now)) {
                control.request_scan();
                break;
            }
        }
        if sim.now >= sim.end {
            control.stop();
        }
    }
}

#[derive(Debug)]
struct SimMember(Rc<RefCell<Sim>>, usize);

impl Member for SimMember {
    fn label(&self) -> &str {
        "simulated"
    }
    fn set(&mut self, class: TaskClass) -> Result<u32, SchedError> {
        let task = &mut self.0.borrow_mut().tasks[self.1];
        task.class = class;
        Ok(task.threads as u32)
    }
    fn pin(&mut self, cpu: usize) -> Result<(), SchedError> {
        let mut sim = self.0.borrow_mut();
        sim.check(cpu)?;
        sim.tasks[self.1].cpu = cpu;
        Ok(())
    }
    fn cpu_time(&mut self) -> Nanos {
        self.0.borrow().tasks[self.1].used
    }
    fn scan(&mut self, _thorough: bool) -> Result<bool, SchedError> {
        let sim = self.0.borrow();
        sim.check(sim.tasks[self.1].cpu)?;
        Ok(sim.tasks[self.1].ends.is_none_or(|end| sim.now < end))
    }
    fn wants_cpu(&self) -> bool {
        let mut sim = self.0.borrow_mut();
        let now = sim.now;
        sim.tasks[self.1].asked += 1;
        sim.tasks[self.1].wants_cpu(now)
    }
    fn threads(&self) -> usize {
        self.0.borrow().tasks[self.1].threads
    }
}

struct World {
    sim: Rc<RefCell<Sim>>,
    config: Config,
}

impl World {
    fn new(cpus: usize, tasks: usize, end: Nanos) -> World {
        let mut config = Config::for_cpus((0..cpus).collect::<Vec<_>>());
        config.trace = 1_000_000;
        config.open_pieces.part = 0.0;
        let task = |_| SimTask {
            class: TaskClass::Fifo(config.base),
            cpu: 0,
            used: 0,
            threads: 1,
            ends: None,
            awake: None,
            asked: 0,
            runs: Vec::new(),
        };
        let sim = Sim {
            now: 0,
            end,
            tasks: (0..tasks).map(task).collect(),
            stolen: |_| false,
            stolen_time: 0,
            by_scheduler: false,
            bystander: None,
            unplugged: None,
        };
        World {
            sim: Rc::new(RefCell::new(sim)),
            config,
        }
    }

    fn task(self, index: usize, change: impl FnOnce(&mut SimTask)) -> World {
        change(&mut self.sim.borrow_mut().tasks[index]);
        self
    }

    fn open(mut self) -> World {
        self.config.open_pieces = OpenPieces::default();
        self.sim.borrow_mut().bystander = Some(0);
        self
    }

    fn run(&self, policy: impl Policy + 'static) -> Report {
        let mut engine = Engine::new(self.config.clone(), Box::new(policy));
        let tasks = self.sim.borrow().tasks.len();
        for task in 0..tasks {
            engine.add(SimMember(self.sim.clone(), task)).unwrap();
        }
        engine.run(&mut SimClock(self.sim.clone())).unwrap()
    }

    /// Returns the CPU time of each task, ms.
    fn used(&self) -> Vec<Nanos> {
        self.sim
            .borrow()
            .tasks
            .iter()
            .map(|t| t.used / MS)
            .collect()
    }
}

#[test]
fn round_robin_gives_slices_in_turn() {
    let world = World::new(1, 3, 30 * MS);
    let report = world.run(RoundRobin::new(5 * MS));
    assert_eq!(world.used(), [10, 10, 10]);
    let runs = world.sim.borrow().tasks[1].runs.clone();
    assert_eq!(runs, [(5 * MS, 10 * MS), (20 * MS, 25 * MS)]);
    assert_eq!(report.switches, 6);
    assert_eq!(report.calls, 6);
}

#[test]
fn one_task_for_each_cpu_needs_no_turns() {
    let world = World::new(2, 2, 100 * MS);
    let report = world.run(RoundRobin::new(5 * MS));
    assert_eq!(world.used(), [100, 100]);
    assert_eq!((report.turns, report.calls), (1, 2));
}

#[test]
fn three_tasks_share_two_cpus() {
    let world = World::new(2, 3, 300 * MS);
    world.run(RoundRobin::new(5 * MS));
    assert_eq!(world.used(), [200, 200, 200]);
}

#[test]
fn a_cpu_that_is_unplugged_leaves_its_tasks_to_the_others() {
    for lost in [0, 1] {
        let world = World::new(2, 4, 1000 * MS);
        world.sim.borrow_mut().unplugged = Some((lost, 100 * MS));
        let report = world.run(RoundRobin::new(5 * MS));
        assert_eq!(report.lost, [lost]);
        let used = world.used();
        // Four tasks share 2 × 100 ms and then 900 ms, which is 275 ms for each.
        assert!(
            used.iter().all(|used| (265..285).contains(used)),
            "{used:?}"
        );
    }
}

#[test]
fn losers_run_while_the_winner_sleeps() {
    let world = World::new(1, 2, 100 * MS).task(0, |task| task.awake = Some((10 * MS, MS)));
    world.run(RoundRobin::new(5 * MS));
    let used = world.used();
    assert_eq!(used[0] + used[1], 100);
    assert!(used[0] <= 10);
}

#[test]
fn shares_hold_beside_a_sleeper() {
    let world = World::new(1, 3, 2000 * MS).task(0, |task| task.awake = Some((20 * MS, MS)));
    let policy = Weighted::new(5 * MS).share(TaskId(1), 3);
    world.run(policy);
    let used = world.used();
    let ratio = used[1] as f64 / used[2] as f64;
    assert!((2.8..3.2).contains(&ratio), "{used:?}");
    // The sleeper gets all the time that it needs.
    assert!(used[0] >= 90, "{used:?}");
}

#[test]
fn shares_hold_while_a_higher_thread_takes_most_of_the_cpu() {
    // The thread takes: most of every turn; most of every second turn; at random, most of half of
    // the turns.
    let patterns: [fn(Nanos) -> bool; 3] = [
        |now| now % (7 * MS) < 5 * MS,
        |now| now % (10 * MS) < 4 * MS,
        |now| {
            now % (5 * MS) < 4 * MS
                && (now / (5 * MS)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 0
        },
    ];
    for (pattern, stolen) in patterns.into_iter().enumerate() {
        let world = World::new(1, 2, 4000 * MS);
        world.sim.borrow_mut().stolen = stolen;
        world.run(Weighted::new(5 * MS).share(TaskId(0), 3));
        let used = world.used();
        let ratio = used[0] as f64 / used[1] as f64;
        assert!((2.8..3.2).contains(&ratio), "pattern {pattern}: {used:?}");
    }
}

#[test]
fn equals_below_a_sleeper_take_turns_and_the_sleeper_runs_at_once() {
    let world = World::new(1, 3, 1000 * MS).task(0, |task| task.awake = Some((7 * MS, MS)));
    let policy = Levels::new(5 * MS).level(TaskId(0), 0);
    world.run(policy);
    let used = world.used();
    assert!(used[1].abs_diff(used[2]) <= 30, "{used:?}");
    let sim = world.sim.borrow();
    // After the first turns the sleeper never waits.
    for &(begin, _) in sim.tasks[0].runs.iter().skip(3) {
        assert_eq!(begin % (7 * MS), 0);
    }
}

#[test]
fn sleepers_are_rarely_asked_whether_they_sleep() {
    let mut world = World::new(1, 12, 1600 * MS);
    let mut policy = Levels::new(5 * MS);
    for sleeper in 0..10 {
        world = world.task(sleeper, |task| task.awake = Some((MS, 0)));
        policy = policy.level(TaskId(sleeper), 0);
    }
    let report = world.run(policy);
    assert!(report.turns >= 320, "{report:?}");
    let sim = world.sim.borrow();
    let asked: Vec<u32> = sim.tasks.iter().map(|task| task.asked).collect();
    assert!(asked[..10].iter().all(|&asked| asked <= 12), "{asked:?}");
}

#[test]
fn strict_levels_starve_those_below() {
    let world = World::new(1, 2, 100 * MS);
    world.run(Levels::new(5 * MS).level(TaskId(1), 0));
    assert_eq!(world.used(), [0, 100]);
}

#[test]
fn each_task_gets_its_budget_before_its_deadline() {
    let reserve = |period, budget| Reservation {
        period: period * MS,
        budget: budget * MS,
    };
    let world = World::new(1, 3, 400 * MS);
    let policy = Edf::new()
        .reserve(TaskId(0), reserve(10, 4), 1.0)
        .and_then(|policy| policy.reserve(TaskId(1), reserve(25, 10), 1.0))
        .unwrap();
    world.run(policy);
    let sim = world.sim.borrow();
    for (task, period, budget) in [(0, 10, 4), (1, 25, 10)] {
        for from in (0..400 * MS).step_by((period * MS) as usize) {
            let to = from + period * MS;
            let within =
                |&(begin, end): &(Nanos, Nanos)| end.min(to).saturating_sub(begin.max(from));
            let used: Nanos = sim.tasks[task].runs.iter().map(within).sum();
            assert!(used >= budget * MS, "task {task} from {from}: {used}");
        }
    }
}

#[test]
fn solo_leaves_everything_to_the_kernel() {
    let world = World::new(1, 2, 100 * MS);
    let report = world.run(Solo::new());
    assert_eq!((report.turns, report.switches, report.calls), (1, 0, 0));
    assert_eq!(world.used(), [100, 0]);
}

#[test]
fn a_task_that_has_ended_leaves_its_time_to_the_others() {
    let world = World::new(1, 3, 100 * MS).task(1, |task| task.ends = Some(12 * MS));
    let report = world.run(RoundRobin::new(5 * MS));
    let used = world.used();
    assert_eq!(used.iter().sum::<u64>(), 100, "{used:?}");
    assert!(used[0].abs_diff(used[2]) <= 5, "{used:?}");
    assert_eq!(report.tasks[1].threads, 0);
}

#[test]
fn open_pieces_give_an_ordinary_thread_its_part_and_keep_the_shares() {
    let world = World::new(1, 2, 4000 * MS).open();
    let report = world.run(RoundRobin::new(5 * MS));
    let used = world.used();
    let ordinary = world.sim.borrow().bystander.unwrap() / MS;
    assert!((3998..=4000).contains(&(used[0] + used[1] + ordinary)));
    // Half of 12 % of four seconds.
    assert!((200..280).contains(&ordinary), "{ordinary}");
    let share = used[0] as f64 / (used[0] + used[1]) as f64;
    assert!((0.495..0.505).contains(&share), "{used:?}");
    assert!(report.opened.abs_diff(480 * MS) < 48 * MS);
}

#[test]
fn no_piece_is_opened_while_tasks_leave_ordinary_threads_their_part() {
    let opened = |cpus: usize, awake: Nanos| {
        let mut world = World::new(cpus, cpus, 4000 * MS).open();
        for index in 0..cpus {
            world = world.task(index, |task| task.awake = Some((4 * MS, awake)));
        }
        let report = world.run(RoundRobin::new(5 * MS));
        (
            report.opened / MS,
            world.sim.borrow().bystander.unwrap() / MS,
        )
    };
    // The tasks leave a quarter of each CPU.
    for cpus in [1, 2] {
        let (opened, ordinary) = opened(cpus, 3 * MS);
        assert_eq!(opened, 0);
        let quarter = 1000 * cpus as u64;
        // The simulated thread gets every second step of the remaining time.
        assert!(ordinary * 2 >= quarter, "{ordinary}");
    }
    // A twentieth is too little, so pieces of 12 % of the time (480 ms) are opened.
    let (opened, _) = opened(1, 4 * MS - MS / 5);
    assert!((400..560).contains(&opened), "{opened}");
}

#[test]
fn a_task_that_runs_alone_continues_after_an_open_piece() {
    let mut world = World::new(1, 3, 400 * MS).open();
    world.sim.borrow_mut().bystander = None;
    world.config.scan_interval = Duration::from_millis(7);
    world.run(Solo::new());
    assert_eq!(world.used(), [400, 0, 0]);
}

#[test]
fn cpu_time_of_the_scheduler_counts_against_ordinary_threads() {
    let opened = |by_scheduler: bool| {
        let world = World::new(1, 1, 4000 * MS).open();
        // The task uses 70 % of the time, and a thread above all tasks the next 25 %.
        let world = world.task(0, |task| task.awake = Some((10 * MS, 7 * MS)));
        let mut sim = world.sim.borrow_mut();
        sim.stolen = |now| (7 * MS..9 * MS + MS / 2).contains(&(now % (10 * MS)));
        sim.by_scheduler = by_scheduler;
        drop(sim);
        world.run(RoundRobin::new(5 * MS)).opened / MS
    };
    assert_eq!(opened(false), 0);
    let opened = opened(true);
    assert!((400..560).contains(&opened), "{opened}");
}

#[test]
fn many_threads_of_one_task_do_not_make_each_switch_cost_more() {
    for threads in [1, 2000] {
        let world = World::new(1, 3, 3000 * MS).task(0, |task| task.threads = threads);
        let report = world.run(RoundRobin::new(5 * MS));
        assert_eq!(report.switches, 600);
        assert!(report.calls <= 600 * 2 + 2 * threads as u64, "{report:?}");
        assert_eq!(world.used(), [1000, 1000, 1000]);
    }
}

#[test]
fn many_threads_change_a_few_times_per_piece_and_not_at_each_switch_in_it() {
    let run = |threads| {
        let world = World::new(1, 3, 4000 * MS).open();
        let world = world.task(0, |task| task.threads = threads);
        let report = world.run(RoundRobin::new(MS));
        let ordinary = world.sim.borrow().bystander.unwrap() / MS;
        (report.calls, ordinary, world.used())
    };
    let (few_calls, few_ordinary, _) = run(1);
    let (many_calls, many_ordinary, used) = run(2000);
    // There are about 20 pieces; for each the threads change when it begins, when it ends, and once
    // or twice when their task is in front.
    assert!(
        many_calls - few_calls <= 2000 * 4 * 22,
        "{many_calls} calls with many threads, {few_calls} with few"
    );
    assert!(
        many_ordinary.abs_diff(few_ordinary) <= 40,
        "ordinary thread: {many_ordinary} ms beside many threads, {few_ordinary} beside few"
    );
    // The three tasks share the time that the ordinary thread leaves, 94 % of four seconds.
    assert!(
        used.iter().all(|used| (1100..1400).contains(used)),
        "{used:?}"
    );
}
