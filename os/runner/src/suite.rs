//! The test matrix: the kernel's own tests and the programs', on each number of
//! harts, in deterministic time, and under chaos; images that must be refused; the ways
//! in which the machine must fail.
//!
//! A run passes if the machine exits with the right status, the last line is there, no
//! line speaks of a panic, and what else is asked of its output holds.

use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use crate::build::{self, Image, VDSO};
use crate::qemu::{self, Machine, Network, Outcome};
use crate::trace::{self, Kind};
use crate::{doctor, peer, sequence, state};

/// Generous: the host may be slow, and a hang is rare.
const LIMIT: Duration = Duration::from_secs(120);
/// For all tests of the programs where instructions count as time, under chaos or on several harts:
/// QEMU has one thread then, and the host may be busy.
const LIMIT_OF_INSTRUCTIONS: Duration = Duration::from_secs(600);

/// What five vCPUs may take of the time of four, on 4 harts, in thousandths.
const MOST_FOR_A_FIFTH: u32 = 1_200;

/// Seeds of chaos, if nothing else is said; a soak begins with those behind them.
pub(crate) const SEEDS: u64 = 10;
/// Seeds of chaos of a soak.
const SOAK_SEEDS: u64 = 40;
/// Seeds of programs that make any calls, of a soak, and how many of them one machine has.
const FUZZ_SEEDS: u64 = 200;
const FUZZ_SEEDS_AT_ONCE: u64 = 50;

/// Machines that run at the same time.
const AT_ONCE: usize = 2;

/// Which seeds of chaos are run.
#[derive(Clone, Copy)]
pub(crate) enum Seeds {
    /// So many, after everything else.
    First(u64),
    /// This one, and nothing else.
    Only(u64),
}

/// One run of the machine.
struct Run {
    name: String,
    /// Other than the usual one.
    image: Option<Image>,
    machine: Machine,
    /// The exit status that is right.
    status: i32,
    /// The last line begins so.
    last: &'static str,
    /// How long it may take.
    limit: Duration,
    /// What else must hold.
    check: fn(&Outcome) -> Result<(), String>,
    /// What speaks to the machine meanwhile, at a port of 127.0.0.1.
    peer: Option<fn(u16) -> Result<(), String>>,
    /// How to repeat it.
    repeat: Option<String>,
}

/// A run with the usual image whose programs or tests pass.
fn run_of(name: String, smp: u32, arguments: &str) -> Run {
    let last = match arguments.starts_with("selftest") {
        true => "selftest: ",
        false => "upshift: tests ended with 0",
    };
    Run {
        name,
        image: None,
        machine: Machine {
            cpu: "",
            smp,
            icount: false,
            network: Network::No,
            arguments: arguments.to_owned(),
        },
        status: 0,
        last,
        limit: LIMIT,
        check: |_| Ok(()),
        peer: None,
        repeat: None,
    }
}

/// Runs all of it, or only one seed of chaos, or what has `only` in its name, and prints one
/// line per test.
pub(crate) fn run(smp: &[u32], seeds: Seeds, only: Option<&str>) -> Result<ExitCode, String> {
    let image = build::image()?;
    let mut runs = match seeds {
        Seeds::Only(seed) => vec![chaos(seed)],
        Seeds::First(count) => matrix(smp, count)?,
    };
    if let Some(part) = only {
        runs.retain(|run| run.name.contains(part));
    }
    let code = run_all(&image, runs.into_iter())?;
    if let (Seeds::First(count), None) = (seeds, only) {
        println!(
            "chaos: {count} seeds; `cargo xtask os -- soak` runs those up to {SOAK_SEEDS}, and \
             {FUZZ_SEEDS} of programs that make any calls"
        );
    }
    Ok(code)
}

/// The programs' tests, so many times; then the seeds that the matrix leaves out.
pub(crate) fn soak(smp: u32, runs: u64) -> Result<ExitCode, String> {
    let image = build::image()?;
    let seeds = (SEEDS + 1..=SOAK_SEEDS).map(chaos);
    let fuzz = (1..=FUZZ_SEEDS)
        .step_by(FUZZ_SEEDS_AT_ONCE as usize)
        .flat_map(|first| [(1, true), (2, false), (4, false)].map(|with| fuzz(first, with)));
    let again =
        (1..=runs).map(|number| run_of(format!("soak {number}, smp {smp}"), smp, "init=tests"));
    // A series is of one machine at a time: what it waits for is its own.
    let turns = [2, 4, 8].map(tests_in_turns);
    let first = run_some(&image, again, 1)?;
    let then = run_all(&image, turns.into_iter().chain(fuzz).chain(seeds))?;
    Ok(if first == ExitCode::SUCCESS {
        then
    } else {
        first
    })
}

fn run_all(image: &Image, runs: impl Iterator<Item = Run> + Send) -> Result<ExitCode, String> {
    run_some(image, runs, AT_ONCE)
}

/// Runs them, so many at the same time, and prints what their tests say when they have ended.
fn run_some(
    image: &Image,
    runs: impl Iterator<Item = Run> + Send,
    at_once: usize,
) -> Result<ExitCode, String> {
    let runs = Mutex::new(runs);
    let counts = Mutex::new((0, 0));
    let next = || runs.lock().map_or(None, |mut runs| runs.next());
    let work = || -> Result<(), String> {
        while let Some(run) = next() {
            let (passed, failed) = run_one(image, &run)?;
            if let Ok(mut counts) = counts.lock() {
                counts.0 += passed;
                counts.1 += failed;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(work)).collect();
        let mut ended = workers.into_iter().map(|worker| worker.join());
        ended.try_for_each(|end| end.unwrap_or(Err("a runner panicked".to_owned())))
    })?;
    let (passed, failed) = counts.into_inner().unwrap_or((0, 1));
    println!("{passed} passed, {failed} failed");
    Ok(ExitCode::from(u8::from(failed != 0)))
}

/// One machine: how many tests passed and failed, its end included.
fn run_one(image: &Image, run: &Run) -> Result<(u32, u32), String> {
    let image = run.image.as_ref().unwrap_or(image);
    let peer = match (run.peer, run.machine.network) {
        (Some(peer), Network::Forwarded(port) | Network::ForwardedDatagrams(port)) => {
            Some(std::thread::spawn(move || peer(port)))
        }
        _ => None,
    };
    let outcome = qemu::run(image, &run.machine, run.limit)?;
    let peer = peer.map_or(Ok(()), |peer| {
        peer.join().unwrap_or(Err("it panicked".into()))
    });
    let name = &run.name;
    let (mut passed, mut failed) = (0, 0);
    // Nothing of another machine in between.
    let mut report = std::io::stdout().lock();
    let tests = outcome.output.lines();
    for line in tests.filter(|line| line.starts_with("test ")) {
        let _ = writeln!(report, "{name}: {line}");
        match line.ends_with(" ok") {
            true => passed += 1,
            false => failed += 1,
        }
    }
    let took = outcome.took;
    let verdict = verdict(run, &outcome);
    match verdict.and(peer.map_err(|error| format!("the peer: {error}"))) {
        Ok(()) => {
            passed += 1;
            let _ = writeln!(report, "{name}: test ends_as_it_should ... ok ({took:.1?})");
        }
        Err(reason) => {
            failed += 1;
            let output = &outcome.output;
            let _ = writeln!(
                report,
                "{name}: FAILED after {took:.1?}: {reason}\n{output}"
            );
            let _ = write!(report, "{}", state_of(name, image, &outcome));
            if let Some(repeat) = &run.repeat {
                let _ = writeln!(report, "{name}: to repeat it: {repeat}");
            }
        }
    }
    Ok((passed, failed))
}

/// Only programs that make any calls, with these seeds.
fn fuzz(first: u64, (smp, icount): (u32, bool)) -> Run {
    let last = first + FUZZ_SEEDS_AT_ONCE - 1;
    let icounted = if icount { " icount" } else { "" };
    let mut run = run_of(
        format!("any calls, seeds {first} to {last}, smp {smp}{icounted}"),
        smp,
        &format!("init=hostile with=seeds-{first}-{FUZZ_SEEDS_AT_ONCE}"),
    );
    run.machine.icount = icount;
    run.last = "upshift: hostile ended with 0";
    run
}

/// Keeps what is known of a run that has failed, and says where each hart was.
fn state_of(name: &str, image: &Image, outcome: &Outcome) -> String {
    let state = outcome.state.as_deref().unwrap_or("it ended by itself\n");
    let said = format!("{}\n{}", outcome.end, outcome.output);
    let (path, harts) = state::keep(name, image, state, &said);
    let path = path.display();
    format!("{harts}{name}: its last state is kept in {path}\n")
}

fn matrix(smp: &[u32], seeds: u64) -> Result<Vec<Run>, String> {
    let mut runs = failures();
    runs.extend(refusals()?);
    runs.push(Run {
        machine: Machine {
            cpu: "",
            smp: 1,
            icount: true,
            network: Network::No,
            arguments: "selftest icount".to_owned(),
        },
        ..run_of("icount kernel".to_owned(), 1, "selftest")
    });
    runs.push(Run {
        machine: Machine {
            cpu: "",
            smp: 1,
            icount: true,
            network: Network::No,
            arguments: "init=tests with=exact".to_owned(),
        },
        ..run_of("icount".to_owned(), 1, "")
    });
    runs.extend([4, 8].map(harts));
    runs.extend([1, 4].map(laws));
    runs.push(network(1, true, Network::Modern));
    runs.push(network(2, false, Network::Legacy));
    runs.push(network(4, false, Network::Modern));
    for harts in [1, 2] {
        runs.push(echo(harts)?);
    }
    runs.push(echo_of_datagrams()?);
    runs.push(rings_of_pipes());
    runs.extend(["coroutines", "threads"].map(matrix_server));
    runs.push(Run {
        machine: Machine {
            cpu: "",
            smp: 1,
            icount: true,
            network: Network::No,
            arguments: "init=traced trace".to_owned(),
        },
        last: "upshift: traced ended with 0",
        check: sequence_is_exact,
        ..run_of("trace".to_owned(), 1, "")
    });
    runs.push(Run {
        machine: Machine {
            cpu: "",
            smp: 1,
            icount: false,
            network: Network::No,
            arguments: "init=child with=untrue-trace trace=16".to_owned(),
        },
        last: "upshift: child ended with 0",
        check: |outcome| match trace::parse(&outcome.output) {
            Some(trace) if trace.lost != 0 => Ok(()),
            _ => Err("there is no trace, or what it lacks is not counted".to_owned()),
        },
        ..run_of("untrue trace".to_owned(), 1, "")
    });
    for &harts in smp {
        let with = if harts == 1 { " with=single" } else { "" };
        runs.push(run_of(format!("smp {harts} kernel"), harts, "selftest"));
        runs.push(run_of(
            format!("smp {harts}"),
            harts,
            &format!("init=tests{with}"),
        ));
        runs.push(Run {
            last: "upshift: rings ended with 0",
            ..run_of(format!("smp {harts} rings"), harts, "init=rings with=short")
        });
    }
    let stripped = build::variant("stripped", |_, file| doctor::stripped(file))?;
    runs.push(Run {
        image: Some(stripped),
        ..run_of("stripped".to_owned(), 2, "init=tests")
    });
    runs.extend((1..=seeds).map(chaos));
    Ok(runs)
}

/// An echo server in the machine, and a peer outside. On one hart the network tells the machine
/// its address.
fn echo(smp: u32) -> Result<Run, String> {
    let port = peer::free_port()?;
    let address = match smp {
        1 => "dhcp",
        _ => "10.0.2.15/24,10.0.2.2",
    };
    let arguments = format!("init=sockets with=serve address={address}");
    let mut run = run_of(format!("echo, smp {smp}"), smp, &arguments);
    if smp == 1 {
        run.check = |outcome| match outcome.output.contains("10.0.2.15/24 by DHCP") {
            true => Ok(()),
            false => Err("it has no address".to_owned()),
        };
    }
    run.machine.network = Network::Forwarded(port);
    run.last = "upshift: sockets ended with 0";
    run.peer = Some(peer::speak);
    Ok(run)
}

/// The same server, and a peer that sends datagrams.
fn echo_of_datagrams() -> Result<Run, String> {
    let mut run = echo(2)?;
    run.name = "echo of datagrams, smp 2".to_owned();
    if let Network::Forwarded(port) = run.machine.network {
        run.machine.network = Network::ForwardedDatagrams(port);
    }
    run.peer = Some(peer::speak_datagrams);
    Ok(run)
}

/// The kernel's own tests on a machine with a network card.
fn network(smp: u32, icount: bool, network: Network) -> Run {
    let (slot, icounted) = match network {
        Network::Legacy => ("legacy", ""),
        _ => ("modern", if icount { ", icount" } else { "" }),
    };
    let icounted_too = if icount { " icount" } else { "" };
    // No timer for the address: the tests know all that there are.
    let arguments = format!("selftest{icounted_too} address=10.0.2.15/24,10.0.2.2");
    let mut run = run_of(
        format!("{slot} network card, smp {smp}{icounted}"),
        smp,
        &arguments,
    );
    run.machine.network = network;
    run.check = |outcome| match outcome.output.contains("upshift: network card ") {
        true => Ok(()),
        false => Err("there is no card".to_owned()),
    };
    run.machine.icount = icount;
    run
}

/// The tests that assert times across harts.
fn harts(smp: u32) -> Run {
    let mut run = run_of(
        format!("icount smp {smp}"),
        smp,
        &format!("init=harts with={smp}"),
    );
    run.machine.icount = true;
    run.last = "upshift: harts ended with 0";
    run
}

/// The programs' tests on several harts in deterministic time.
fn tests_in_turns(smp: u32) -> Run {
    let mut run = run_of(format!("icount smp {smp} tests"), smp, "init=tests");
    run.machine.icount = true;
    run.limit = LIMIT_OF_INSTRUCTIONS;
    run
}

/// What threads of all levels note of when they ran, held against the laws of the scheduler.
fn laws(smp: u32) -> Run {
    let name = format!("icount smp {smp} laws");
    let mut run = run_of(name, smp, &format!("init=laws with={smp}"));
    run.machine.icount = true;
    run.last = "upshift: laws ended with 0";
    run
}

/// The server of the evaluation; its clients look at every reply.
fn matrix_server(model: &str) -> Run {
    let arguments = format!("init=matrix with={model},16,8,4,0,50,1");
    let mut run = run_of(format!("matrix server, {model}, icount"), 1, &arguments);
    run.machine.icount = true;
    run.last = "upshift: matrix ended with 0";
    run
}

/// Four rings on 4 harts, in instructions of all harts: a vCPU too many costs little.
fn rings_of_pipes() -> Run {
    let mut run = run_of("icount smp 4 rings".to_owned(), 4, "init=rings with=exact");
    run.machine.icount = true;
    run.last = "upshift: rings ended with 0";
    run.check = |outcome| {
        let ratio = |line: &str| {
            line.split_once("5 vCPUs to 4: ")?
                .1
                .split(' ')
                .next()?
                .parse()
                .ok()
        };
        let ratios: Vec<u32> = outcome.output.lines().filter_map(ratio).collect();
        match ratios.len() == 2 && ratios.iter().all(|ratio| *ratio <= MOST_FOR_A_FIFTH) {
            true => Ok(()),
            false => Err(format!(
                "5 vCPUs took {ratios:?} thousandths of what 4 took"
            )),
        }
    };
    run
}

/// The programs' tests under chaos: every fifth seed where time counts instructions, so
/// that it repeats exactly, the others on 2 and 4 harts.
fn chaos(seed: u64) -> Run {
    let (smp, icount) = match (seed % 5, seed % 2) {
        (0, _) => (1, true),
        (_, 1) => (2, false),
        _ => (4, false),
    };
    let icounted = if icount { " icount" } else { "" };
    let mut run = run_of(
        format!("chaos seed {seed}, smp {smp}{icounted}"),
        smp,
        &format!("init=tests with=chaos chaos={seed}"),
    );
    run.machine.icount = icount;
    if icount {
        run.limit = LIMIT_OF_INSTRUCTIONS;
    }
    run.check = |outcome| match outcome.output.contains("upshift: disturbed ") {
        true => Ok(()),
        false => Err("nothing was disturbed".to_owned()),
    };
    run.repeat = Some(format!("cargo xtask os -- test --seed {seed}"));
    run
}

/// Ways in which the machine must fail.
fn failures() -> Vec<Run> {
    let panic = |how: &str| Run {
        status: 101,
        last: "upshift: kernel panicked",
        ..run_of(format!("{how} fails"), 1, &format!("selftest={how}"))
    };
    let mut runs: Vec<_> = ["panic", "overflow", "text"].map(panic).into();
    runs.push(Run {
        status: 2,
        last: "upshift: none ended with 2",
        ..run_of("no program fails".to_owned(), 1, "init=none")
    });
    let mut old = Run {
        status: 2,
        last: "upshift: this processor lacks",
        ..run_of("an old processor fails".to_owned(), 2, "init=tests")
    };
    old.machine.cpu = "rv64,zbb=off";
    runs.push(old);
    runs
}

/// Images that the kernel must refuse, saying why.
fn refusals() -> Result<Vec<Run>, String> {
    let refused = |name: &str, last, change: fn(Vec<u8>) -> Vec<u8>| {
        let image = build::variant(name, |file, bytes| match file {
            VDSO => change(bytes),
            _ => bytes,
        })?;
        Ok::<_, String>(Run {
            image: Some(image),
            status: 2,
            last,
            ..run_of(format!("vdso {name} is refused"), 1, "init=tests")
        })
    };
    Ok(vec![
        refused(
            "without upshift_wake",
            "upshift: the vDSO lacks the function upshift_wake; build the image again",
            |file| doctor::without_symbol(file, "upshift_wake"),
        )?,
        refused(
            "with writable text",
            "upshift: the vDSO is malformed: a segment is too large, or writable code",
            doctor::with_writable_text,
        )?,
        refused(
            "with a relocation outside data",
            "upshift: the vDSO is malformed: a relocation is not in data",
            doctor::with_relocation_outside_data,
        )?,
        refused(
            "that is no ELF file",
            "upshift: the vDSO is malformed: no RISC-V shared object",
            |_| b"nonsense".to_vec(),
        )?,
    ])
}

/// The coroutines of the program `traced`, and of its calls, go through exactly these
/// states in this order.
fn sequence_is_exact(outcome: &Outcome) -> Result<(), String> {
    let trace = trace::parse(&outcome.output).ok_or("there is no trace")?;
    let seen: Vec<String> = trace
        .records
        .iter()
        .filter(|record| record.kind == Kind::User || record.is_call)
        .map(|record| format!("{} {} {}", record.state, record.level, record.who))
        .collect();
    for (number, (seen, expected)) in seen.iter().zip(sequence::TRACED).enumerate() {
        if seen != expected {
            return Err(format!(
                "change {number} is `{seen}` instead of `{expected}`; all: {seen:#?}"
            ));
        }
    }
    match seen.len() == sequence::TRACED.len() {
        true => Ok(()),
        false => Err(format!("{} changes: {seen:#?}", seen.len())),
    }
}

fn verdict(run: &Run, outcome: &Outcome) -> Result<(), String> {
    if run.status == 0 && outcome.output.contains("panicked") {
        return Err("something panicked".to_owned());
    }
    match outcome.status {
        Some(status) if status == run.status => {}
        _ => {
            let (end, right) = (&outcome.end, run.status);
            return Err(format!("{end} instead of exit status {right}"));
        }
    }
    let mut lines = outcome.output.lines().rev();
    if !lines.any(|line| line.starts_with(run.last)) {
        return Err(format!("the line `{}` is missing", run.last));
    }
    (run.check)(outcome)
}
