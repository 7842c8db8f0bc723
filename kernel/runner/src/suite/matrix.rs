//! The machines of the test matrix.

use super::must_fail::{failures, refusals};
use super::{FUZZ_SEEDS_PER_MACHINE, LIMIT_OF_INSTRUCTIONS, MAX_RATIO_OF_FIVE, Run, run_of};
use crate::build::{Image, Isa};
use crate::disk::Content;
use crate::qemu::{Network, Outcome};
use crate::trace::{self, Kind};
use crate::{build, elf_patch, peer, record, sequence};

/// Returns a run of the programs that make arbitrary calls, with the seeds from `first` on.
pub(super) fn fuzz(first: u64, (smp, icount): (u32, bool)) -> Run {
    let last = first + FUZZ_SEEDS_PER_MACHINE - 1;
    let icounted = if icount { " icount" } else { "" };
    let mut run = run_of(
        format!("any calls, seeds {first} to {last}, smp {smp}{icounted}"),
        smp,
        &format!("init=hostile with=seeds-{first}-{FUZZ_SEEDS_PER_MACHINE}"),
    );
    run.machine.icount = icount;
    run.machine.disk = Some(Content::Blank);
    run.last = "upshift: hostile ended with 0";
    run
}

/// Returns all machines of the matrix, with this number of seeds of chaos.
pub(super) fn matrix(smp: &[u32], seeds: u64) -> Result<Vec<Run>, String> {
    let mut runs = failures();
    runs.extend(refusals()?);
    runs.push(run_of("icount kernel".to_owned(), 1, "selftest icount").icount());
    runs.push(run_of("icount".to_owned(), 1, "init=tests with=exact").icount());
    runs.extend([4, 8].map(harts));
    runs.extend([1, 4].map(laws));
    runs.push(network(1, true, Network::Modern));
    runs.push(network(2, false, Network::Legacy));
    runs.push(network(4, false, Network::Modern));
    for harts in [1, 2] {
        runs.push(echo(harts)?);
    }
    runs.push(echo_of_datagrams()?);
    runs.push(wire(1)?);
    runs.push(wire(4)?);
    runs.extend([(1, true), (2, false), (4, false)].map(files));
    runs.push(rings_of_pipes());
    runs.extend(["coroutines", "threads"].map(matrix_server));
    runs.push(Run {
        last: "upshift: traced ended with 0",
        check: sequence_is_exact,
        ..run_of("trace".to_owned(), 1, "init=traced trace").icount()
    });
    runs.push(Run {
        last: "upshift: child ended with 0",
        check: |outcome| match trace::parse(&outcome.output) {
            Some(trace) if trace.lost != 0 => Ok(()),
            _ => Err("there is no trace, or its lost records are not counted".to_owned()),
        },
        ..run_of(
            "untrue trace".to_owned(),
            1,
            "init=child with=untrue-trace trace=16",
        )
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
    runs.push(run_of(
        "smp 2, 1,024 threads, stacks of 16 KiB".to_owned(),
        2,
        "init=tests threads=1024 stack=16",
    ));
    runs.push(late_hart());
    let kernel_threads = build::with_kernel_threads()?;
    let on_threads = |run: Run| on_kernel_threads(&kernel_threads, run);
    runs.extend(["coroutines", "threads"].map(|model| on_threads(matrix_server(model))));
    runs.push(open_loop("coroutines", 1));
    runs.push(open_loop("threads", 2));
    runs.push(on_threads(open_loop("coroutines", 2)));
    runs.push(on_threads(slow_clock()));
    runs.extend(clients_of_the_host(&kernel_threads)?);
    let stripped = build::variant("stripped", |_, file| elf_patch::stripped(file))?;
    runs.push(Run {
        image: Some(stripped),
        ..run_of("stripped".to_owned(), 2, "init=tests")
    });
    runs.extend((1..=seeds).map(chaos));
    Ok(runs)
}

/// Name of the machine without bit manipulation.
pub(super) const RV64GC: &str = "rv64gc, smp 2";

/// Returns a run of the tests of programs, built for RV64GC, on a processor without bit
/// manipulation.
pub(super) fn rv64gc() -> Result<Run, String> {
    let mut run = run_of(RV64GC.to_owned(), 2, "init=tests");
    run.image = Some(build::image_for(Isa::Rv64gc)?);
    run.machine.cpu = build::RV64GC_CPU;
    Ok(run)
}

/// Common part of the names of the machines whose kernel is isolated.
pub(super) const ISOLATED: &str = "isolated";

/// Returns tests of kernel and programs, on a kernel that the page tables of programs do not map.
pub(super) fn isolated() -> Result<Vec<Run>, String> {
    let image = build::isolated()?;
    let runs = [
        run_of(format!("{ISOLATED}, smp 1 kernel"), 1, "selftest icount").icount(),
        run_of(format!("{ISOLATED}, smp 2 kernel"), 2, "selftest"),
        run_of(format!("{ISOLATED}, smp 2"), 2, "init=tests"),
    ];
    let with_image = |run| Run {
        image: Some(image.clone()),
        ..run
    };
    Ok(runs.map(with_image).into())
}

/// Returns a run of an echo server in the machine, with a peer outside. With one hart, the network
/// assigns the address of the machine.
fn echo(smp: u32) -> Result<Run, String> {
    let port = peer::free_port()?;
    let address = match smp {
        1 => "dhcp",
        _ => "10.0.2.15/24,10.0.2.2",
    };
    let arguments = format!("init=sockets with=serve address={address}");
    let mut run = run_of(format!("echo, smp {smp}"), smp, &arguments);
    run.check = match smp {
        1 => |outcome| {
            if outcome.output.contains("10.0.2.15/24 by DHCP") {
                has_no_retransmission(outcome)
            } else {
                Err("the machine has no address".to_owned())
            }
        },
        _ => has_no_retransmission,
    };
    run.machine.network = Network::Forwarded(port);
    run.last = "upshift: sockets ended with 0";
    run.peer = Some(|network| with_port(network, peer::check_echo));
    Ok(run)
}

/// Calls `check` with the forwarded port.
fn with_port(network: Network, check: fn(u16) -> Result<(), String>) -> Result<(), String> {
    match network {
        Network::Forwarded(port) | Network::ForwardedDatagrams(port) => check(port),
        _ => Err("no port is forwarded".to_owned()),
    }
}

fn wire(smp: u32) -> Result<Run, String> {
    let (machine, peer) = (peer::free_port()?, peer::free_port()?);
    let arguments = "init=sockets with=serve address=10.0.2.15/24,10.0.2.2";
    let mut run = run_of(format!("frames, smp {smp}"), smp, arguments);
    run.machine.network = Network::Wire { machine, peer };
    run.last = "upshift: sockets ended with 0";
    run.peer = Some(|network| match network {
        Network::Wire { machine, peer } => peer::check_frames(machine, peer),
        _ => Err("there is no wire".to_owned()),
    });
    run.check = |outcome| {
        if outcome
            .output
            .contains("frames above 1514 bytes are dropped")
        {
            Ok(())
        } else {
            Err("no message about frames that are too long".to_owned())
        }
    };
    Ok(run)
}

/// Checks that no segment that cannot have been lost was retransmitted.
fn has_no_retransmission(outcome: &Outcome) -> Result<(), String> {
    let record = outcome.record.as_deref().unwrap_or_default();
    match record::check(record)? {
        0 => Err("nothing was sent to the peer".to_owned()),
        _ => Ok(()),
    }
}

fn echo_of_datagrams() -> Result<Run, String> {
    let mut run = echo(2)?;
    run.name = "echo of datagrams, smp 2".to_owned();
    if let Network::Forwarded(port) = run.machine.network {
        run.machine.network = Network::ForwardedDatagrams(port);
    }
    run.peer = Some(|network| with_port(network, peer::check_datagram_echo));
    Ok(run)
}

/// Returns a run of the kernel's own tests, on a machine with a network card.
fn network(smp: u32, icount: bool, network: Network) -> Run {
    let (slot, icounted) = match network {
        Network::Legacy => ("legacy", ""),
        _ => ("modern", if icount { ", icount" } else { "" }),
    };
    let argument = if icount { " icount" } else { "" };
    // The address is fixed, because DHCP would need a timer, and the tests count the timers.
    let arguments = format!("selftest{argument} address=10.0.2.15/24,10.0.2.2");
    let mut run = run_of(
        format!("{slot} network card, smp {smp}{icounted}"),
        smp,
        &arguments,
    );
    run.machine.network = network;
    // A disk, because each driver must leave the device of the other alone.
    run.machine.disk = Some(Content::Blank);
    run.check = |outcome| {
        if outcome.output.contains("upshift: network card ") {
            Ok(())
        } else {
            Err("there is no card".to_owned())
        }
    };
    run.machine.icount = icount;
    run
}

/// Returns a run of the tests that assert times across harts.
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

/// Returns a run of the tests of programs, on several harts in deterministic time.
pub(super) fn tests_under_icount(smp: u32) -> Run {
    let mut run = run_of(format!("icount smp {smp} tests"), smp, "init=tests");
    run.machine.icount = true;
    run.limit = LIMIT_OF_INSTRUCTIONS;
    run
}

/// Returns a run in which threads of all levels record their run times, which are checked against
/// the laws of the scheduler.
fn laws(smp: u32) -> Run {
    let name = format!("icount smp {smp} laws");
    let mut run = run_of(name, smp, &format!("init=laws with={smp}"));
    run.machine.icount = true;
    run.last = "upshift: laws ended with 0";
    run
}

fn files((smp, icount): (u32, bool)) -> Run {
    let icounted = if icount { ", icount" } else { "" };
    let mut run = run_of(format!("files, smp {smp}{icounted}"), smp, "init=files");
    run.machine.icount = icount;
    run.machine.disk = Some(Content::Programs);
    if smp == 4 {
        run.machine.network = Network::Legacy;
    }
    run.last = "upshift: files ended with 0";
    run
}

/// Returns a run in which the second hart starts only when a program runs. The program must use the
/// hart from then on, and the tests must pass.
fn late_hart() -> Run {
    let mut run = run_of("smp 2, late".to_owned(), 2, "init=tests late");
    run.check = |outcome| {
        if outcome.output.contains(" is not online") {
            Ok(())
        } else {
            Err("the other hart was not late".to_owned())
        }
    };
    run
}

/// Returns a run of the evaluation's server, whose clients check every reply.
fn matrix_server(model: &str) -> Run {
    let arguments = format!("init=matrix with={model},16,8,4,0,50,1");
    let mut run = run_of(format!("matrix server, {model}, icount"), 1, &arguments);
    run.machine.icount = true;
    run.last = "upshift: matrix ended with 0";
    run.check = latency_matches_cost;
    run
}

/// Returns the same run on a kernel that has a thread for each call that waits.
fn on_kernel_threads(image: &Image, run: Run) -> Run {
    Run {
        name: format!("kernel threads, {}", run.name),
        image: Some(image.clone()),
        ..run
    }
}

/// Number of connections in the open loop, and of clients on the host.
const CONNECTIONS: u16 = 8;
/// Number of requests on each connection in the open loop.
const REQUESTS_PER_CONNECTION: u16 = 2;

/// Returns a run of the evaluation's server, with a request every 20 ms on each connection.
fn open_loop(model: &str, smp: u32) -> Run {
    const PERIOD: u16 = 20;
    let millis = PERIOD * REQUESTS_PER_CONNECTION;
    let arguments = format!("init=matrix with={model},{CONNECTIONS},8,2,{PERIOD},{millis},{smp}");
    let name = format!("matrix server, {model}, open loop, smp {smp}, icount");
    let mut run = run_of(name, smp, &arguments).icount();
    run.last = "upshift: matrix ended with 0";
    run.check = answers_all;
    run
}

/// Returns a run with threads of eight levels that share locks, on harts so slow that waiters could
/// use them up.
fn slow_clock() -> Run {
    let name = "matrix server, threads, slow clock, icount".to_owned();
    let arguments = "init=matrix with=threads,8,12,8,10,2000,2 threads=4096 harts=alternate";
    let mut run = run_of(name, 4, arguments).icount();
    run.machine.shift = 5;
    run.last = "upshift: matrix ended with 0";
    run
}

/// Checks that every request of the open loop was answered within the measured time.
fn answers_all(outcome: &Outcome) -> Result<(), String> {
    let mut lines = outcome.output.lines();
    let answered = lines.find_map(|line| line.strip_prefix("matrix: ")?.split(' ').nth(6));
    let all = CONNECTIONS * REQUESTS_PER_CONNECTION;
    match answered {
        Some(answered) if answered == all.to_string() => Ok(()),
        answered => Err(format!("{answered:?} of {all} requests were answered")),
    }
}

/// Returns runs of the evaluation's server, with clients on the host that compare every reply.
fn clients_of_the_host(kernel_threads: &Image) -> Result<[Run; 3], String> {
    const MODELS: [(&str, u32); 3] = [("coroutines", 1), ("threads", 2), ("coroutines", 2)];
    // All ports come from one range, because separate ranges could overlap.
    let first = peer::free_ports(CONNECTIONS * MODELS.len() as u16)?;
    let mut next = first;
    let runs = MODELS.map(|(model, smp)| {
        let first = next;
        next += CONNECTIONS;
        let arguments = format!(
            "init=matrix with=outside,{model},{CONNECTIONS},{smp} address=10.0.2.15/24,10.0.2.2"
        );
        let name = format!("matrix server, {model}, clients of the host, smp {smp}");
        let mut run = run_of(name, smp, &arguments);
        run.machine.network = Network::Served {
            first,
            count: CONNECTIONS,
            ports_per_server: CONNECTIONS,
        };
        run.last = "upshift: matrix ended with 0";
        run.peer = Some(|network| match network {
            Network::Served {
                first,
                count,
                ports_per_server,
            } => peer::check_matrix(first, count, ports_per_server),
            _ => Err("no port is forwarded".to_owned()),
        });
        run
    });
    let [coroutines, threads, last] = runs;
    Ok([coroutines, threads, on_kernel_threads(kernel_threads, last)])
}

/// Checks the law of the closed loop: while a connection of the most urgent class waits for a
/// reply, the server answers one request of each connection of that class. So the latency is the
/// cost of a request times the number of these connections, with a margin of 3 %.
fn latency_matches_cost(outcome: &Outcome) -> Result<(), String> {
    const CONNECTIONS: u64 = 16 / 4;
    let lines = outcome.output.lines();
    let words = lines.filter_map(|line| line.strip_prefix("matrix: "));
    let words = words.map(|line| line.split(' ').collect::<Vec<_>>());
    let first_class = words.into_iter().find(|words| words.get(5) == Some(&"10"));
    let number = |at: usize| first_class.as_ref()?.get(at)?.parse::<u64>().ok();
    // The mean latency, and the time per request.
    match (number(8), number(17)) {
        (Some(micros), Some(nanos))
            if (micros * 1_000).abs_diff(nanos * CONNECTIONS) < micros * 30 =>
        {
            Ok(())
        }
        (latency, cost) => Err(format!(
            "the latency is {latency:?} µs, not {CONNECTIONS} times the cost of {cost:?} ns"
        )),
    }
}

/// Returns a run of four rings on 4 harts, measured in instructions of all harts. A surplus vCPU
/// must cost little.
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
        if ratios.len() == 2 && ratios.iter().all(|ratio| *ratio <= MAX_RATIO_OF_FIVE) {
            Ok(())
        } else {
            Err(format!(
                "5 vCPUs took {ratios:?} thousandths of the time of 4"
            ))
        }
    };
    run
}

/// Returns a run of the tests of programs under chaos. Every fifth seed runs where time counts
/// instructions, so that it repeats exactly; the other seeds run on 2 and 4 harts.
pub(super) fn chaos(seed: u64) -> Run {
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
    run.check = |outcome| {
        if outcome.output.contains("upshift: disturbed ") {
            Ok(())
        } else {
            Err("nothing was disturbed".to_owned())
        }
    };
    run.repeat = Some(format!("cargo xtask os -- test --seed {seed}"));
    run
}

/// Checks that the coroutines of the program `traced`, and the coroutines of its calls, go through
/// exactly these states in this order.
fn sequence_is_exact(outcome: &Outcome) -> Result<(), String> {
    let trace = trace::parse(&outcome.output).ok_or("there is no trace")?;
    let seen: Vec<String> = trace
        .records
        .iter()
        .filter(|record| record.kind == Kind::User || record.is_call)
        .map(|record| format!("{} {} {}", record.state, record.level, record.subject))
        .collect();
    for (number, (seen, expected)) in seen.iter().zip(sequence::TRACED).enumerate() {
        if seen != expected {
            return Err(format!(
                "change {number} is `{seen}` instead of `{expected}`; all: {seen:#?}"
            ));
        }
    }
    if seen.len() == sequence::TRACED.len() {
        Ok(())
    } else {
        Err(format!("{} changes: {seen:#?}", seen.len()))
    }
}
