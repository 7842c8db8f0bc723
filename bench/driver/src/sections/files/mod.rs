//! The section `files`: measures the same work on files, with blocking and with non-blocking calls,
//! on one CPU, with a warm and a cold page cache.
//!
//! The files are in `target/files` of the benchmarks, on the file system of the checkout. Every
//! program is bound to CPU 0, with its threads and the kernel's threads for its ring; the client of
//! the mixed row is on CPU 1.

mod cache;
mod report;

use std::io::{Read, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use bench_kit::files::{
    BIG_BYTES, BIG_NUMBER, BLOCK, BULK_TASKS, CHECKED_BLOCKS, CHECKED_PIECES, CHECKED_RECORDS,
    LONG_BYTES, RECORD_BYTES, SMALL_FILES, SMALL_LENGTH, first_word, sum_words, word,
};
use serde::Deserialize;
use upshift_load::child::{Child, listening_address, pin};

use crate::machine::{LoadMonitor, Usage};
use crate::options::{Options, bench_dir};
use crate::peers::{BuiltPrograms, FILES, Program};
use crate::results::{Run, SectionResults};
use crate::rounds;
use crate::sections::closed::admit;
use cache::{create_files, evict_all, fill_page_cache, preallocate, remove_output};
pub(crate) use report::{goals, table};

/// Time limit for a line of output of a program.
const LIMIT: Duration = Duration::from_secs(900);

/// A case of the section: its name, the row that the program measures (its first argument), its
/// further arguments, and whether the files are in the page cache.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    row: &'static str,
    args: &'static [&'static str],
    is_warm: bool,
}

const fn case(
    name: &'static str,
    row: &'static str,
    args: &'static [&'static str],
    is_warm: bool,
) -> Case {
    Case {
        name,
        row,
        args,
        is_warm,
    }
}

const CASES: [Case; 9] = [
    case(
        "open, read, close 10,000 files of 4,000 bytes, warm",
        "open",
        &[],
        true,
    ),
    case(
        "open, read, close 10,000 files of 4,000 bytes, cold",
        "open",
        &["--once"],
        false,
    ),
    case("random 4 KiB reads, warm", "random", &[], true),
    case("random 4 KiB reads, cold", "random", &["--once"], false),
    case(
        "random 4 KiB reads, O_DIRECT",
        "random",
        &["--direct"],
        false,
    ),
    case("sequential 1 MiB reads, warm", "read", &[], true),
    case("sequential 1 MiB reads, cold", "read", &["--once"], false),
    case("sequential 1 MiB writes", "write", &[], true),
    case("append 512 bytes and fdatasync", "append", &[], true),
];
/// Names of the two cases of the row `mixed`: the urgent reads, and the writes beside them.
const MIXED: [&str; 2] = [
    "urgent 4 KiB reads beside 1 MiB writes: the reads",
    "urgent 4 KiB reads beside 1 MiB writes: the writes",
];
/// Number of tasks in most rows, and in rows with operations of 1 MiB.
const TASKS: [&str; 2] = ["32", "4"];
/// Time between two urgent reads.
const PACE: Duration = Duration::from_millis(1);
/// Factor by which the p99 of the urgent reads must be below that of every other runtime.
const REQUIRED_SPEEDUP: f64 = 3.0;

/// Report that a program prints: latencies in µs, CPU times in s.
#[derive(Deserialize)]
struct Printed {
    ops: f64,
    seconds: f64,
    p50: f64,
    p99: f64,
    p999: f64,
    user: f64,
    sys: f64,
    sum: u64,
}

pub(crate) fn run(results: &mut SectionResults, options: &Options, built: &BuiltPrograms) {
    let dir = bench_dir().join("target/files");
    if let Err(error) = create_files(&dir) {
        results.note(format!("{}: {error}", dir.display()));
        return;
    }
    let mut programs = built.programs(FILES);
    programs.retain(|(name, program)| {
        let outcome = check_bytes(program, &dir);
        admit(results, name, program, outcome)
    });
    if !evict_all(&dir) {
        let note = "cold: posix_fadvise(POSIX_FADV_DONTNEED) for each file, since drop_caches was refused; names stay cached";
        results.note(note.into());
    }
    let count = if options.quick { 3 } else { CASES.len() };
    // The last case is the mixed row.
    let cases: Vec<Option<&Case>> = CASES[..count].iter().map(Some).chain([None]).collect();
    let round = options.round;
    for (case, index) in cases
        .iter()
        .flat_map(|it| (0..programs.len()).map(move |i| (it, i)))
    {
        let (name, program) = &programs[(index + round) % programs.len()];
        let title = case.map_or(MIXED[0], |case| case.name);
        let row = format!("{title}, {name}");
        let runs = rounds::repeat_while_disturbed(results, options, &row, || {
            let runs = match case {
                Some(case) => run_case(case, program, &dir, options),
                None => run_mixed(program, &dir, options),
            }?;
            let why = runs.last().and_then(Run::disturbance);
            Ok((runs, why))
        });
        match runs {
            Ok(runs) => {
                for (run, title) in runs.into_iter().zip([title, MIXED[1]]) {
                    record(results, title, name, Run { round, ..run });
                }
            }
            Err(why) => results.note(format!("round {}: {row}: {why}", round + 1)),
        }
    }
}

fn record(results: &mut SectionResults, case: &str, peer: &str, run: Run) {
    eprintln!(
        "{case:>48} {peer:<12} {:>10.0}/s  p50 {:>8.1} p99 {:>8.1} µs  {:>7.2} µs/op  others {:>3.0} %",
        run.per_second,
        run.p50,
        run.p99,
        run.cpu(),
        100.0 * run.foreign
    );
    results.record(case, peer, run);
}

/// Checks, in a short run of all operations, that the program reads and writes the expected bytes.
fn check_bytes(program: &Program, dir: &Path) -> Result<(), String> {
    remove_output(dir);
    let printed = end(start(program, "check", dir, &[])?)?;
    let bytes = |number: u64, from: u64, length: usize| -> Vec<u8> {
        let words = (0..length as u64 / 8).map(|index| word(number, from / 8 + index));
        words.flat_map(u64::to_le_bytes).collect()
    };
    let big = |length: u64| sum_words(&bytes(BIG_NUMBER, 0, length as usize));
    let small = (0..SMALL_FILES as u64).step_by(100);
    let small = small.map(|number| sum_words(&bytes(number, 0, SMALL_LENGTH)));
    let expected = small
        .fold(0, u64::wrapping_add)
        .wrapping_add(big(CHECKED_BLOCKS * BLOCK as u64))
        .wrapping_add(big(CHECKED_PIECES * LONG_BYTES as u64));
    if printed.sum != expected {
        return Err("the program read other bytes than those of the files".into());
    }
    let read = |name: &str| std::fs::read(dir.join(name)).map_err(|e| format!("{name}: {e}"));
    let last = bytes(
        BIG_NUMBER,
        (CHECKED_PIECES - 1) * LONG_BYTES as u64,
        LONG_BYTES,
    );
    if read("out")? != last.repeat(CHECKED_PIECES as usize) {
        return Err("the program wrote wrong bytes".into());
    }
    if read("log")? != bytes(BIG_NUMBER, 0, RECORD_BYTES).repeat(CHECKED_RECORDS) {
        return Err("the program appended wrong bytes".into());
    }
    Ok(())
}

fn start(program: &Program, row: &str, dir: &Path, args: &[&str]) -> Result<Child, String> {
    let mut command = Command::new(&program.file);
    command
        .arg(row)
        .args(["--dir"])
        .arg(dir)
        .args(&program.args)
        .args(args);
    pin(&mut command, 0);
    Child::start(&mut command).map_err(|e| format!("cannot start {}: {e}", program.file.display()))
}

fn line(child: &mut Child) -> Result<String, String> {
    child
        .line(LIMIT)
        .map_err(|_| "the program printed no line".into())
}

/// Waits for the program's end and returns its report.
fn end(mut child: Child) -> Result<Printed, String> {
    let line = line(&mut child)?;
    let status = child.wait().map_err(|e| e.to_string())?;
    if !status.success() {
        return Err(format!("ended with {status}"));
    }
    serde_json::from_str(&line).map_err(|e| format!("not a report: `{line}` ({e})"))
}

impl Printed {
    fn run(&self, monitor: &LoadMonitor) -> Run {
        let Usage {
            busy: [first, second],
            time,
            steal,
        } = monitor.stop();
        let used = self.user + self.sys;
        Run {
            per_second: self.ops / self.seconds,
            p50: self.p50,
            p99: self.p99,
            p999: self.p999,
            user: 1e6 * self.user / self.ops.max(1.0),
            sys: 1e6 * self.sys / self.ops.max(1.0),
            server_busy: used / self.seconds,
            foreign: (first + second - used / time.as_secs_f64()).max(0.0),
            steal,
            ..Run::default()
        }
    }
}

fn run_case(
    case: &Case,
    program: &Program,
    dir: &Path,
    options: &Options,
) -> Result<Vec<Run>, String> {
    remove_output(dir);
    if case.is_warm {
        fill_page_cache(case.row, dir).map_err(|e| e.to_string())?;
    } else {
        evict_all(dir);
    }
    let seconds = options.time.as_secs_f64().to_string();
    let tasks = TASKS[usize::from(matches!(case.row, "read" | "write"))];
    let mut args = vec!["--seconds", &seconds, "--tasks", tasks];
    args.extend(case.args);
    let monitor = LoadMonitor::start();
    let printed = end(start(program, case.row, dir, &args)?)?;
    if printed.ops == 0.0 {
        return Err("no operation was completed".into());
    }
    Ok(vec![printed.run(&monitor)])
}

/// Runs the mixed row once: an urgent read every [`PACE`] (see [`ask`]), beside bulk writes.
fn run_mixed(program: &Program, dir: &Path, options: &Options) -> Result<Vec<Run>, String> {
    remove_output(dir);
    let bulk_files = (0..BULK_TASKS).map(|number| dir.join(format!("bulk-{number}")));
    bulk_files
        .collect::<Vec<PathBuf>>()
        .iter()
        .try_for_each(|path| preallocate(path))
        .and_then(|()| fill_page_cache("mixed", dir))
        .map_err(|e| e.to_string())?;
    let monitor = LoadMonitor::start();
    let mut child = start(program, "mixed", dir, &["--tasks", TASKS[0]])?;
    let line = line(&mut child)?;
    let address = listening_address(&line).ok_or_else(|| format!("no address: `{line}`"))?;
    let mut stream = TcpStream::connect(address).map_err(|e| e.to_string())?;
    stream
        .set_nodelay(true)
        .and_then(|()| stream.set_read_timeout(Some(Duration::from_secs(5))))
        .map_err(|e| e.to_string())?;
    let time = options.time;
    let client = std::thread::spawn(move || ask(&mut stream, time));
    let mut latencies = client.join().map_err(|_| "the client panicked")??;
    let printed = end(child)?;
    let seconds = options.time.as_secs_f64();
    latencies.sort_unstable();
    let percentile_us =
        |quantile: f64| latencies[(latencies.len() as f64 * quantile) as usize] as f64 / 1e3;
    let writes = printed.run(&monitor);
    let urgent = Run {
        per_second: latencies.len() as f64 / seconds,
        p50: percentile_us(0.5),
        p99: percentile_us(0.99),
        p999: percentile_us(0.999),
        server_busy: writes.server_busy,
        foreign: writes.foreign,
        ..Run::default()
    };
    Ok(vec![urgent, writes])
}

/// Time at the beginning, in which reads are not counted.
const WARM_UP: Duration = Duration::from_millis(100);

/// Requests a block every [`PACE`] on CPU 1; returns the time until each block arrived, in ns. A
/// read that was due before the previous answer counts from its due time.
fn ask(stream: &mut TcpStream, time: Duration) -> Result<Vec<u64>, String> {
    // SAFETY: a `cpu_set_t` is a bit array, for which zeros are valid. The pointer is valid,
    // because `sched_setaffinity` only reads this local.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(1, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
    let (mut latencies, mut block, mut reply) = (Vec::new(), 1_u64, vec![0; BLOCK]);
    let begin = Instant::now();
    let mut due = begin;
    while due - begin < WARM_UP + time {
        due += PACE;
        let wait = due.saturating_duration_since(Instant::now());
        std::thread::sleep(wait);
        let measured_from = if wait.is_zero() { due } else { Instant::now() };
        block = word(BIG_NUMBER + 1, block) % (BIG_BYTES / BLOCK as u64);
        stream
            .write_all(&block.to_le_bytes())
            .and_then(|()| stream.read_exact(&mut reply))
            .map_err(|e| format!("no reply: {e}"))?;
        if due - begin > WARM_UP {
            latencies.push(measured_from.elapsed().as_nanos() as u64);
        }
        if first_word(&reply) != word(BIG_NUMBER, block * BLOCK as u64 / 8) {
            return Err("a reply has other bytes than the file".into());
        }
    }
    Ok(latencies)
}
