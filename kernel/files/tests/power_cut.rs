//! Tests in which the power fails, once after each single write of a run. Any subset of the sectors
//! that were not flushed is then on the disk. All synced changes survive, and the files equal the
//! state after some number of changes.

use os_files::direct::{Disk, Mounted};
use os_files::load::{self, Change, Model};
use os_files::{BLOCK, Block, Error};

/// Size of a sector in bytes. The disk writes whole sectors.
const SECTOR: usize = 512;
/// Number of blocks of the disk.
const BLOCKS: usize = 400;

/// A disk with a write cache that fails after a number of writes.
#[derive(Clone)]
struct FailingDisk {
    stable: Vec<u8>,
    /// Blocks written since the last flush.
    cached: Vec<(u32, Block)>,
    writes_left: usize,
}

impl Disk for FailingDisk {
    fn blocks(&self) -> u64 {
        (self.stable.len() / BLOCK) as u64
    }

    fn read(&mut self, block: u32, to: &mut Block) -> Result<(), Error> {
        self.stable.read(block, to)?;
        if let Some((_, bytes)) = self.cached.iter().rfind(|(cached, _)| *cached == block) {
            *to = *bytes;
        }
        Ok(())
    }

    fn write(&mut self, block: u32, from: &Block) -> Result<(), Error> {
        if self.writes_left == 0 {
            return Err(Error::Failed);
        }
        self.writes_left -= 1;
        self.cached.push((block, *from));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Error> {
        if self.writes_left == 0 {
            return Err(Error::Failed);
        }
        for (block, bytes) in std::mem::take(&mut self.cached) {
            self.stable.write(block, &bytes)?;
        }
        Ok(())
    }
}

/// Returns the contents of the disk after the power has failed. Each sector that was not flushed
/// has its old or its new contents.
fn after_power_cut(disk: &FailingDisk, random: &mut impl FnMut() -> u64) -> Vec<u8> {
    let mut stable = disk.stable.clone();
    for (block, bytes) in &disk.cached {
        let start = *block as usize * BLOCK;
        // Bit N: sector N has its new contents.
        let new_sectors = match random() % 4 {
            0 => 0,
            1 => u64::MAX,
            _ => random(),
        };
        for sector in (0..BLOCK / SECTOR).filter(|sector| new_sectors >> sector & 1 != 0) {
            let part = sector * SECTOR..(sector + 1) * SECTOR;
            stable[start + part.start..start + part.end].copy_from_slice(&bytes[part]);
        }
    }
    stable
}

fn contents(disk: Vec<u8>) -> Model {
    let mut mounted = Mounted::mount(disk).expect("the disk can be mounted");
    let mut names = Vec::new();
    let mut from = 0;
    while let Some(listed) = mounted.volume.list(from) {
        names.push(listed.name.to_owned());
        from = listed.next;
    }
    let mut model = Model::default();
    for name in names {
        let file = mounted.open(name.as_bytes(), false).unwrap();
        let bytes = mounted.read_all(&file).expect("the checksums are correct");
        mounted.volume.close(file);
        model.0.insert(name, bytes);
    }
    model
}

fn apply(mounted: &mut Mounted<FailingDisk>, name: &str, change: &Change) -> Result<(), Error> {
    match *change {
        Change::Unlink => match mounted.unlink(name.as_bytes()) {
            Err(Error::NoFile) => Ok(()),
            other => other,
        },
        Change::Create => {
            let file = mounted.open(name.as_bytes(), true)?;
            mounted.volume.close(file);
            Ok(())
        }
        Change::Write { part, len, first } => {
            let file = mounted.open(name.as_bytes(), true)?;
            let (offset, bytes) = load::write(mounted.volume.size(&file), part, len, first);
            let written = mounted.write(&file, offset, &bytes);
            mounted.volume.close(file);
            written
        }
    }
}

/// Applies the changes of a seed until the power fails. Returns the disk, the number of synced
/// changes, and the number of changes that have begun.
fn run(disk: FailingDisk, seed: u64, changes: u64) -> (FailingDisk, u64, u64) {
    let mut mounted = Mounted::mount(disk).unwrap();
    let mut synced = 0;
    for n in 0..changes {
        let (name, change) = load::change(seed, n);
        if apply(&mut mounted, &name, &change).is_err() {
            return (mounted.disk, synced, n + 1);
        }
        if n % 7 == 6 {
            if mounted.sync().is_err() {
                return (mounted.disk, synced, n + 1);
            }
            synced = n + 1;
        }
    }
    (mounted.disk, synced, changes)
}

/// Checks that the files equal the state after some number of changes from `synced` to `begun`.
fn check(found: &Model, seed: u64, synced: u64, begun: u64) -> Result<(), String> {
    let mut model = Model::default();
    for n in 0..=begun {
        if n >= synced && model == *found {
            return Ok(());
        }
        let (name, change) = load::change(seed, n);
        // A file is created before the first write to it.
        if let Change::Write { .. } = change
            && n >= synced
            && n < begun
        {
            let mut created = model.clone();
            created.apply(&name, &Change::Create);
            if created == *found {
                return Ok(());
            }
        }
        model.apply(&name, &change);
    }
    Err(format!(
        "seed {seed}: the files equal no state after {synced} to {begun} changes"
    ))
}

#[test]
fn synced_changes_survive_a_cut_after_any_write() {
    let formatted = Mounted::format(vec![0; BLOCKS * BLOCK]).unwrap().disk;
    for seed in 1..=4 {
        let mut state = seed;
        let mut random = move || {
            state = u64::wrapping_mul(state ^ (state >> 29), 0x9e37_79b9_7f4a_7c15) + 1;
            state >> 7
        };
        let changes = 180;
        for writes_left in 0.. {
            let disk = FailingDisk {
                stable: formatted.clone(),
                cached: Vec::new(),
                writes_left,
            };
            let (disk, synced, begun) = run(disk, seed, changes);
            let found = contents(after_power_cut(&disk, &mut random));
            check(&found, seed, synced, begun)
                .unwrap_or_else(|error| panic!("{error}, write {writes_left}"));
            if disk.writes_left > 0 {
                assert!(writes_left > 150, "only {writes_left} writes");
                break;
            }
        }
    }
}

#[test]
fn formatting_is_atomic() {
    for writes_left in 0..4 {
        let disk = FailingDisk {
            stable: vec![0; 100 * BLOCK],
            cached: Vec::new(),
            writes_left,
        };
        let mut mounted = Mounted {
            volume: os_files::Volume::format(disk.blocks()).unwrap(),
            disk,
        };
        let _ = mounted.sync();
        for seed in 0..20 {
            let mut state = seed * 77 + 1;
            let disk = after_power_cut(&mounted.disk, &mut || {
                state = u64::wrapping_mul(state, 0x9e37_79b9_7f4a_7c15) ^ (state >> 31);
                state
            });
            let outcome = Mounted::mount(disk).map(|_| ());
            assert!(matches!(outcome, Ok(()) | Err(Error::Blank)), "{outcome:?}");
        }
    }
}

/// A volume whose disk has failed returns errors for changes, but can be read.
#[test]
fn a_disk_that_fails_is_read_only() {
    let formatted = Mounted::format(vec![0; BLOCKS * BLOCK]).unwrap().disk;
    let mut mounted = Mounted::mount(FailingDisk {
        stable: formatted,
        cached: Vec::new(),
        writes_left: 2,
    })
    .unwrap();
    let file = mounted.open(b"a", true).unwrap();
    mounted.write(&file, 0, &[1; 3 * BLOCK]).unwrap();
    assert_eq!(mounted.sync(), Err(Error::Failed));
    assert_eq!(mounted.write(&file, 0, &[2]), Err(Error::Failed));
    assert_eq!(mounted.open(b"b", true), Err(Error::Failed));
    assert!(mounted.read_all(&file).is_ok_and(|bytes| bytes[0] == 1));
}
