//! Roles of the child processes.

use std::path::PathBuf;

use upshift_board::{Board, NO_LEVEL, Role, ThreadSpec, Vcpu, VcpuSpec};
use upshift_daemon::machine::{Machine, Real};
use upshift_elevate::current_tid;
use upshift_elevate::sys::{CpuSet, Kernel, Sys};

use crate::client::Registration;
use crate::process::{ROLE, monotonic};

/// Is not a test of its own: other tests start this program as their child.
#[test]
fn plays_a_role() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    // Longer than a slow machine takes for any test.
    bound_this_process(300);
    // A program that a rule is to fit has no limit, or it would stay ordinary.
    let limit = match setting("LIMIT").parse() {
        Ok(us) => Some(us),
        Err(_) if PROGRAMS.contains(&role.as_str()) => None,
        Err(_) => Some(2_000_000),
    };
    bound_in_fifo(limit);
    become_user();
    if setting("UNNAMED") == "1" {
        // SAFETY: a plain call. Without it a process that has changed its user does not own its
        // files in `/proc`.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
        std::fs::write(format!("/proc/{}/comm", std::process::id()), b"\xff\xfe").unwrap();
    }
    match role.as_str() {
        "burner" => burner(true),
        "bystander" => burner(false),
        "puppet" => crate::puppet::puppet(),
        "survivor" => crate::puppet::survivor(),
        "reuse" => crate::reuse::reuse(),
        "daemon" => daemon(std::sync::Arc::new(Real)),
        "gap" => gap(),
        "ghost" => ghost(),
        "collapser" => crate::kernel::attackers::collapser(),
        "jostler" => crate::kernel::attackers::jostler(),
        "emigrant" => crate::kernel::attackers::emigrant(),
        "lender" => crate::lending::attackers::lender(),
        "dispatchers" => crate::cpu_share::attackers::dispatchers(),
        "scribbler" => crate::shared_page::scribbler(),
        "alternator" => crate::cpu_share::attackers::alternator(),
        "returner" => crate::cpu_share::attackers::returner(),
        "relay" => crate::cpu_share::attackers::relay(),
        "understudies" => crate::cpu_share::attackers::understudies(),
        "patron" => crate::lending::attackers::patron(),
        "sinker" => crate::cpu_share::attackers::sinker(),
        "summoner" => crate::elevation::summoner(),
        "hermit" => crate::identity::attackers::hermit(),
        "flapper" => crate::cpu_share::floods::flapper(),
        "sleepers" => crate::rules_thread::sleepers(),
        "crowd" => crate::registration::attackers::crowd(),
        "hoarder" => crate::status_socket::hoarder(),
        "changeling" => crate::identity::attackers::changeling(),
        "spinners" => crate::budgets::attackers::spinners(),
        "churner" => crate::budgets::attackers::churner(),
        "forker" => crate::budgets::attackers::forker(),
        "renamer" => crate::budgets::attackers::renamer(),
        "chain" => crate::lending::attackers::chain(),
        "traced" => crate::cpu_share::attackers::traced(),
        "lessor" => crate::proc_files::lease_holder(),
        "stormer" => crate::budgets::attackers::stormer(),
        "shifter" => crate::cpu_share::attackers::shifter(),
        "messenger" => crate::identity::attackers::messenger(),
        "sleeping parent" => sleeping_parent(),
        "legion" => crate::registration::attackers::legion(),
        "donor" => crate::lending::attackers::donor(),
        "whisperer" => crate::lending::attackers::whisperer(),
        "renewer" => crate::budgets::attackers::renewer(),
        "burdener" => crate::registration::attackers::burdener(),
        "leaver" => crate::identity::attackers::leaver(),
        "asker" => crate::registration::attackers::asker(),
        "joiner" => crate::identity::attackers::joiner(),
        "headless" => crate::main_thread::headless(),
        "torrent" => crate::cpu_share::floods::torrent(),
        "namer" => crate::rules_thread::namer(),
        "knocker" => crate::registration::attackers::knocker(),
        "mute" => crate::status_socket::mute(),
        "updater" => crate::registration::attackers::updater(),
        "switcher" => crate::cpu_share::floods::switcher(),
        "hanger" => crate::shared_page::hanger(),
        "twice" => crate::assign::twice(),
        "daemon that panics" => daemon(crate::faults::panics()),
        other => panic!("no role {other}"),
    }
}

/// Programs that do not register. They end by themselves, soon.
const PROGRAMS: [&str; 12] = [
    "twice",
    "renewer",
    "donor",
    "gap",
    "spinners",
    "churner",
    "forker",
    "renamer",
    "sleepers",
    "sleeping parent",
    "stormer",
    "headless",
];

/// Has this process killed when it occupies a CPU in SCHED_FIFO for `limit` µs.
fn bound_in_fifo(limit: Option<u64>) {
    let us = limit.unwrap_or(libc::RLIM_INFINITY);
    let limit = libc::rlimit {
        rlim_cur: us,
        rlim_max: us,
    };
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_RTTIME, &raw const limit) };
}

/// Has this process ended within `seconds`, in any case.
fn bound_this_process(seconds: u32) {
    // SAFETY: plain calls with live arguments.
    unsafe {
        libc::alarm(seconds);
        // The kernel schedules sessions as groups (autogroup): in a session of its own, this
        // process is not charged for others, nor they or the canaries for it.
        libc::setsid();
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Becomes the user `USER` for good, if one is named.
fn become_user() {
    let Ok(user) = setting("USER").parse::<u32>() else {
        return;
    };
    // SAFETY: plain calls; the library makes them for every thread.
    let failed = unsafe {
        libc::setgroups(0, std::ptr::null()) != 0
            || libc::setresgid(user, user, user) != 0
            || libc::setresuid(user, user, user) != 0
    };
    assert!(!failed, "{}", std::io::Error::last_os_error());
}

pub(crate) fn setting(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

pub(crate) fn number(name: &str) -> u64 {
    setting(name).parse().unwrap()
}

pub(crate) fn pin(cpu: usize) {
    Kernel
        .sched_setaffinity(0, &CpuSet::only(cpu).unwrap())
        .unwrap();
}

/// Waits for the parent's word; returns its deadline.
pub(crate) fn wait_for_go() -> u64 {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().parse().unwrap_or(0)
}

/// Joins with the calling thread as the only worker, pinned to `CPU`.
pub(crate) fn join() -> (Board, Vcpu) {
    let cpu = number("CPU") as usize;
    pin(cpu);
    let board = Board::new().unwrap();
    let threads = vec![ThreadSpec {
        tid: current_tid(),
        role: Role::Worker,
    }];
    let spec = VcpuSpec { cpu, threads };
    board
        .join(&PathBuf::from(setting("SOCKET")), &[spec])
        .unwrap();
    let vcpu = board.vcpu(0).unwrap();
    (board, vcpu)
}

/// Runs a daemon in this process, to be killed.
fn daemon(machine: std::sync::Arc<dyn Machine>) {
    if let Ok(errors) = std::fs::File::create(setting("ERRORS")) {
        rustix::stdio::dup2_stderr(errors).unwrap();
    }
    if let Ok(most) = setting("FILES").parse() {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: a live structure.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
    let config = upshift_daemon::Config {
        socket: PathBuf::from(setting("SOCKET")),
        ..upshift_daemon::Config::parse(&setting("CONFIG")).unwrap()
    };
    let daemon = upshift_daemon::Daemon::builder(config).machine(machine);
    let _daemon = daemon.start().unwrap();
    println!("ready");
    wait_for_go();
}

/// Returns memory that this process shares with its forked children, all 0.
///
/// # Safety
/// All 0 must be a valid `T`.
pub(crate) unsafe fn shared<T: Sync>() -> &'static T {
    const { assert!(size_of::<T>() <= 4096) };
    // SAFETY: a fresh anonymous mapping of a page, which stays; the caller promises the rest.
    unsafe {
        let address = libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        assert_ne!(address, libc::MAP_FAILED);
        &*address.cast()
    }
}

/// Returns the CPU time of the calling thread, ns.
pub(crate) fn cpu_time() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a live structure of the type the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Spins until the parent's deadline at `LEVEL`, registered or not, and prints its CPU time.
fn burner(registered: bool) {
    let joined = registered.then(join);
    if !registered {
        pin(number("CPU") as usize);
    }
    println!("ready");
    let deadline = wait_for_go();
    if let Some((_, vcpu)) = &joined {
        vcpu.line().set_running(number("LEVEL") as u8);
        vcpu.settle().unwrap();
    }
    let before = cpu_time();
    while monotonic() < deadline {
        std::hint::spin_loop();
    }
    let used = cpu_time() - before;
    if let Some((_, vcpu)) = &joined {
        vcpu.line().set_running(NO_LEVEL);
        vcpu.settle().unwrap();
    }
    println!("used {}", used / 1000);
    wait_for_go();
}

/// Starts a thread besides those of the test harness, and a child process; all sleep. The child
/// ends with this process, unless `ORPHAN` is set.
fn sleeping_parent() {
    let orphan = std::env::var_os("ORPHAN").is_some();
    std::thread::spawn(|| std::thread::sleep(std::time::Duration::from_secs(60)));
    // SAFETY: the child sleeps and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe {
            if !orphan {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
            libc::sleep(60);
            libc::_exit(0);
        }
    }
    println!("child {child}");
    wait_for_go();
}

/// Spins on `CPU` until the deadline; prints its CPU time, and the longest time without the CPU,
/// both in µs.
pub(crate) fn gap() {
    pin(number("CPU") as usize);
    println!("ready");
    let deadline = wait_for_go();
    let before = cpu_time();
    let (mut last, mut longest) = (monotonic(), 0);
    while last < deadline {
        let now = monotonic();
        longest = longest.max(now - last);
        last = now;
    }
    println!("used {}", (cpu_time() - before) / 1000);
    println!("longest {}", longest / 1000);
    wait_for_go();
}

/// Claims to run at `LEVEL` on `CPU`, and sleeps; without a thread if `THREADS` is 0.
pub(crate) fn ghost() {
    pin(number("CPU") as usize);
    let own = [(current_tid(), Role::Worker)];
    let none = setting("THREADS") == "0";
    let registration = Registration::new(if none { &[] } else { &own });
    println!("ready");
    wait_for_go();
    registration.run(NO_LEVEL);
}
