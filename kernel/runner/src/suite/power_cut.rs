//! Power cuts: a machine applies the changes of a seed, and is killed at a moment that the seed
//! determines. Every change that the machine reported as synced must be on its disk, and the disk
//! must equal the state after some number of changes. A second boot must see the same files.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use os_files::direct::Mounted;
use os_files::load::{self, Change, Model};

use super::{LIMIT, PARALLEL_MACHINES};
use crate::build::Image;
use crate::disk::{Content, Disk};
use crate::qemu::{self, Machine};

pub(super) const NAME: &str = "power cut";

/// Maximum number of syncs before the power is cut.
const MAX_SYNCS: u64 = 40;
/// Maximum delay of the power cut after a sync, in microseconds.
const MAX_DELAY_MICROS: u64 = 12_000;
/// Maximum number of changes on the disk beyond the last reported sync: the changes up to the next
/// sync, which may have completed, and the changes up to the sync after it.
const MAX_UNREPORTED: u64 = 14;
/// Number of power cuts of which one is followed by a second boot with the same disk.
const SEEDS_PER_BOOT: u64 = 5;

/// Cuts the power once per seed. Returns true if nothing was lost.
pub(super) fn run(image: &Image, seeds: u64) -> Result<bool, String> {
    let mut lost = 0;
    let seeds: Vec<u64> = (1..=seeds).collect();
    for batch in seeds.chunks(PARALLEL_MACHINES) {
        let outcomes = std::thread::scope(|scope| {
            let spawn = |seed: &u64| {
                let seed = *seed;
                (seed, scope.spawn(move || cut(image, seed)))
            };
            let running: Vec<_> = batch.iter().map(spawn).collect();
            let join = |(seed, thread): (u64, std::thread::ScopedJoinHandle<'_, _>)| {
                (
                    seed,
                    thread.join().unwrap_or(Err("the cut panicked".to_owned())),
                )
            };
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        for (seed, outcome) in outcomes {
            match outcome {
                Ok(description) => {
                    println!(
                        "{NAME}, seed {seed}: test synced_changes_survive ... ok ({description})"
                    )
                }
                Err(reason) => {
                    lost += 1;
                    println!("{NAME}, seed {seed}: FAILED: {reason}");
                }
            }
        }
    }
    println!(
        "{NAME}: {} of {} seeds lost nothing",
        seeds.len() - lost,
        seeds.len()
    );
    Ok(lost == 0)
}

/// Returns the number of syncs after which the power is cut, and the delay after the last of them.
/// With 0 syncs, the delay starts when the program begins its changes.
fn cut_time(seed: u64) -> (u64, Duration) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = |below: u64| {
        state = (state ^ (state >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) | 1;
        (state >> 20) % below
    };
    (
        next(MAX_SYNCS),
        Duration::from_micros(next(MAX_DELAY_MICROS)),
    )
}

/// Runs one power cut; returns a description of the result.
fn cut(image: &Image, seed: u64) -> Result<String, String> {
    let disk = Disk::new(Content::Blank)?;
    let (syncs, delay) = cut_time(seed);
    let harts = [1, 2][(seed % 2) as usize];
    let machine = Machine::new(harts, &format!("init=files with=changes-{seed}"));
    let output = kill_after(image, &machine, &disk, syncs, delay)?;
    let synced = output
        .iter()
        .filter_map(|line| line.strip_prefix("synced ")?.parse().ok());
    let synced: u64 = synced.max().unwrap_or(0);
    let files = match Mounted::mount(disk.bytes()?) {
        Ok(mounted) => contents(mounted)?,
        Err(os_files::Error::Blank) if synced == 0 => {
            return Ok("cut before the disk was formatted".to_owned());
        }
        Err(error) => return Err(format!("after {synced} synced: {error}")),
    };
    let changes = number_of_changes(&files, seed, synced)?;
    if seed.is_multiple_of(SEEDS_PER_BOOT) {
        check_second_boot(image, &disk, &files)?;
    }
    Ok(format!("{synced} changes synced, {changes} on the disk"))
}

/// Boots, and kills the machine `delay` after its given number of syncs. Returns its output.
fn kill_after(
    image: &Image,
    machine: &Machine,
    disk: &Disk,
    syncs: u64,
    delay: Duration,
) -> Result<Vec<String>, String> {
    let mut child = qemu::command(image, machine, Some(disk.path()))
        .args(["-serial", "stdio", "-monitor", "none"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(qemu::explain)?;
    let output = child.stdout.take().expect("stdout is piped");
    let (sender, lines) = mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let mut all = Vec::new();
    let mut synced = 0;
    let mut failure = None;
    loop {
        match lines.recv_timeout(LIMIT) {
            Ok(line) => {
                let is_begin = line == "changing";
                synced += u64::from(line.starts_with("synced "));
                all.push(line);
                if (is_begin && syncs == 0) || (synced > 0 && synced >= syncs) {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                failure = Some("the machine prints nothing");
                break;
            }
            Err(RecvTimeoutError::Disconnected) => {
                failure = Some("the machine has ended");
                break;
            }
        }
    }
    std::thread::sleep(delay);
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    all.extend(lines.iter());
    match failure {
        None => Ok(all),
        Some(failure) => Err(format!("{failure}: {}", all.join("\n"))),
    }
}

/// Returns all files of a disk except the file that the program syncs.
fn contents(mut mounted: Mounted<Vec<u8>>) -> Result<Model, String> {
    let mut names = Vec::new();
    let mut from = 0;
    while let Some(listed) = mounted.volume.list(from) {
        names.push(listed.name.to_owned());
        from = listed.next;
    }
    let mut model = Model::default();
    for name in names {
        let read = |mounted: &mut Mounted<Vec<u8>>| {
            let file = mounted.open(name.as_bytes(), false)?;
            let bytes = mounted.read_all(&file)?;
            mounted.volume.close(file);
            Ok(bytes)
        };
        let bytes =
            read(&mut mounted).map_err(|error: os_files::Error| format!("{name}: {error}"))?;
        model.0.insert(name, bytes);
    }
    model.0.remove("synced");
    Ok(model)
}

/// Returns the number of changes, at least `synced`, that lead to these files.
fn number_of_changes(files: &Model, seed: u64, synced: u64) -> Result<u64, String> {
    let mut model = Model::default();
    for n in 0..=synced + MAX_UNREPORTED {
        if n >= synced && model == *files {
            return Ok(n);
        }
        let (name, change) = load::change(seed, n);
        if n >= synced && matches!(change, Change::Write { .. }) {
            // The program creates a file before it first writes to it.
            let mut created = model.clone();
            created.apply(&name, &Change::Create);
            if created == *files {
                return Ok(n);
            }
        }
        model.apply(&name, &change);
    }
    Err(format!(
        "the files equal no state after {synced} or a few more changes"
    ))
}

/// Checks that the kernel sees the same files after a second boot.
fn check_second_boot(image: &Image, disk: &Disk, files: &Model) -> Result<(), String> {
    let machine = Machine::new(1, "init=files with=sums");
    let outcome = qemu::run_on(image, &machine, Some(disk.path()), LIMIT)?;
    let sum = |bytes: &[u8]| {
        bytes.iter().fold(0u64, |sum, byte| {
            sum.wrapping_mul(1_099_511_628_211) ^ u64::from(*byte)
        })
    };
    for (name, bytes) in &files.0 {
        let line = format!("file {name}: {} {:x}", bytes.len(), sum(bytes));
        if !outcome.output.lines().any(|printed| printed == line) {
            return Err(format!("`{line}` is missing:\n{}", outcome.output));
        }
    }
    match outcome.status {
        Some(0) => Ok(()),
        _ => Err(format!("{}:\n{}", outcome.end, outcome.output)),
    }
}
