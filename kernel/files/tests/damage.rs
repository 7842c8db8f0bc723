//! Tests of disks with arbitrary contents. Such a disk either fails with an error or can be used,
//! and never causes a panic.

use std::sync::LazyLock;

use os_files::direct::Mounted;
use os_files::{BLOCK, Error};
use proptest::prelude::*;

static IMAGE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut mounted = Mounted::format(vec![0; 700 * BLOCK]).unwrap();
    for (name, len) in [("a", 10), ("b", 5 * BLOCK), ("c", 520 * BLOCK)] {
        let file = mounted.open(name.as_bytes(), true).unwrap();
        mounted
            .write(&file, 0, &vec![name.as_bytes()[0]; len])
            .unwrap();
        mounted.volume.close(file);
    }
    mounted.sync().unwrap();
    mounted.disk
});

/// Mounts the disk, and reads and writes every file.
fn read_all(disk: Vec<u8>) -> Result<(), Error> {
    let mut mounted = Mounted::mount(disk)?;
    let mut names = Vec::new();
    let mut from = 0;
    while let Some(listed) = mounted.volume.list(from) {
        names.push(listed.name.to_owned());
        from = listed.next;
    }
    for name in names {
        let file = mounted.open(name.as_bytes(), false)?;
        mounted.read_all(&file)?;
        mounted.write(&file, 0, b"x")?;
    }
    mounted.sync()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_images_cause_no_panic(
        damage in prop::collection::vec((0..700 * BLOCK, any::<u8>()), 1..8),
        heads in prop::collection::vec((0..2 * BLOCK, any::<u8>()), 0..3),
    ) {
        let mut disk = IMAGE.clone();
        for (at, byte) in damage.into_iter().chain(heads) {
            disk[at] = byte;
        }
        let _ = read_all(disk);
    }
}

#[test]
fn a_changed_byte_is_detected() {
    let disk = IMAGE.clone();
    let damaged = (2..700).filter(|block| {
        let mut disk = disk.clone();
        disk[block * BLOCK + 100] ^= 1;
        read_all(disk) == Err(Error::Damaged)
    });
    // The head reaches 1 + 5 + 520 data blocks, one map block for the file of 5 blocks, 2 + 1 map
    // blocks for the file of 520 blocks, and the directory.
    assert_eq!(damaged.count(), 526 + 4 + 1);
}
