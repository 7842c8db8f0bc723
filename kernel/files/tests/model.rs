//! Applies random sequences of changes, with syncs and mounts in between, to a volume and to a map
//! from names to bytes, and compares the two.

use std::collections::BTreeMap;

use os_files::direct::Mounted;
use os_files::{BLOCK, Error};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Operation {
    Write {
        name: u8,
        part: u64,
        len: usize,
        first: u8,
    },
    Truncate(u8),
    Unlink(u8),
    Sync,
    Mount,
}

fn operation() -> impl Strategy<Value = Operation> {
    let name = 0..6u8;
    prop_oneof![
        8 => (name.clone(), 0..1_000u64, 0..3 * BLOCK, any::<u8>())
            .prop_map(|(name, part, len, first)| Operation::Write { name, part, len, first }),
        1 => name.clone().prop_map(Operation::Truncate),
        1 => name.prop_map(Operation::Unlink),
        2 => Just(Operation::Sync),
        1 => Just(Operation::Mount),
    ]
}

/// Returns a name; two thirds of the names are in directories.
fn name(number: u8) -> Vec<u8> {
    let folder = ["", "a/", "a/b/"][usize::from(number % 3)];
    format!("{folder}name {number}").into_bytes()
}

fn contents(mounted: &mut Mounted<Vec<u8>>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = Vec::new();
    let mut from = 0;
    while let Some(listed) = mounted.volume.list(from) {
        names.push(listed.name.as_bytes().to_vec());
        from = listed.next;
    }
    let mut all = BTreeMap::new();
    for name in names {
        let file = mounted.open(&name, false).unwrap();
        let bytes = mounted.read_all(&file).unwrap();
        mounted.volume.close(file);
        all.insert(name, bytes);
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn files_behave_like_a_map_of_names_to_bytes(
        operations in prop::collection::vec(operation(), 1..60),
        blocks in 80..400usize,
    ) {
        let mut mounted = Mounted::format(vec![0; blocks * BLOCK]).unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Write { name: number, part, len, first } => {
                    let name = name(number);
                    let file = match mounted.open(&name, true) {
                        Err(Error::NoSpace) => continue,
                        file => file.unwrap(),
                    };
                    let known = model.entry(name).or_default();
                    let start = known.len() * part as usize / 1_000;
                    let bytes: Vec<u8> = (0..len).map(|at| first.wrapping_add(at as u8)).collect();
                    let outcome = mounted.write(&file, start as u64, &bytes);
                    let end = match outcome {
                        Ok(()) => start + len,
                        // The blocks before the error were written.
                        Err(Error::NoSpace) => {
                            let mut end = start;
                            let now = mounted.read_all(&file).unwrap();
                            while end < now.len().min(start + len) && now[end] == bytes[end - start] {
                                end += 1;
                            }
                            end
                        }
                        Err(error) => panic!("{error}"),
                    };
                    known.resize(known.len().max(end), 0);
                    known[start..end].copy_from_slice(&bytes[..end - start]);
                    mounted.volume.close(file);
                }
                Operation::Truncate(number) => {
                    let name = name(number);
                    if let Some(known) = model.get_mut(&name) {
                        let file = mounted.open(&name, false).unwrap();
                        mounted.truncate(&file).unwrap();
                        mounted.volume.close(file);
                        known.clear();
                    }
                }
                Operation::Unlink(number) => {
                    let name = name(number);
                    let expected = model.remove(&name).map_or(Err(Error::NoFile), |_| Ok(()));
                    prop_assert_eq!(mounted.unlink(&name), expected);
                }
                Operation::Sync => mounted.sync().unwrap(),
                Operation::Mount => {
                    mounted.sync().unwrap();
                    let free = mounted.volume.free();
                    mounted = Mounted::mount(mounted.disk).unwrap();
                    // No block is leaked, and no used block is free.
                    prop_assert_eq!(mounted.volume.free(), free);
                }
            }
        }
        prop_assert_eq!(&contents(&mut mounted), &model);
        mounted.sync().unwrap();
        let mut remounted = Mounted::mount(mounted.disk).unwrap();
        prop_assert_eq!(&contents(&mut remounted), &model);
        // After all files are unlinked, all blocks except the two heads and a small directory are
        // free.
        for name in model.keys() {
            remounted.unlink(name).unwrap();
        }
        remounted.sync().unwrap();
        prop_assert!(remounted.volume.free() as usize >= blocks - 4);
    }
}

#[test]
fn a_file_of_three_levels_is_read_back() {
    let mut mounted = Mounted::format(vec![0; 2_000 * BLOCK]).unwrap();
    let bytes: Vec<u8> = (0..600 * BLOCK + 5).map(|at| (at / 7) as u8).collect();
    let file = mounted.open(b"long", true).unwrap();
    mounted.write(&file, 0, &bytes).unwrap();
    mounted.volume.close(file);
    mounted.sync().unwrap();
    let mut remounted = Mounted::mount(mounted.disk).unwrap();
    let file = remounted.open(b"long", false).unwrap();
    assert!(remounted.read_all(&file) == Ok(bytes));
    assert_eq!(remounted.volume.size(&file), 600 * BLOCK as u64 + 5);
}

#[test]
fn an_unlinked_file_stays_while_it_is_open() {
    let mut mounted = Mounted::format(vec![0; 200 * BLOCK]).unwrap();
    let before = mounted.volume.free();
    let file = mounted.open(b"a", true).unwrap();
    mounted.write(&file, 0, &[7; 3 * BLOCK]).unwrap();
    mounted.unlink(b"a").unwrap();
    assert_eq!(mounted.open(b"a", false), Err(Error::NoFile));
    mounted.sync().unwrap();
    assert!(mounted.read_all(&file) == Ok(vec![7; 3 * BLOCK]));
    // Another file with the same name is a different file.
    let other = mounted.open(b"a", true).unwrap();
    assert_eq!(mounted.volume.size(&other), 0);
    mounted.volume.close(other);
    mounted.unlink(b"a").unwrap();
    mounted.volume.close(file);
    mounted.sync().unwrap();
    assert!(
        before - mounted.volume.free() <= 1,
        "only the directory occupies space"
    );
}

#[test]
fn a_full_disk_is_an_error_until_files_are_unlinked() {
    let mut mounted = Mounted::format(vec![0; 128 * BLOCK]).unwrap();
    let file = mounted.open(b"big", true).unwrap();
    let full = mounted.write(&file, 0, &vec![1; 200 * BLOCK]);
    assert_eq!(full, Err(Error::NoSpace));
    mounted.volume.close(file);
    assert_eq!(mounted.open(b"other", true), Err(Error::NoSpace));
    mounted.unlink(b"big").unwrap();
    mounted.sync().unwrap();
    let file = mounted.open(b"other", true).unwrap();
    mounted.write(&file, 0, &vec![1; 40 * BLOCK]).unwrap();
}

#[test]
fn wrong_names_and_offsets_are_errors() {
    let mut mounted = Mounted::format(vec![0; 128 * BLOCK]).unwrap();
    for name in [&b""[..], &[b'x'; 65], &[0xff]] {
        assert_eq!(mounted.open(name, true), Err(Error::BadName));
        assert_eq!(mounted.unlink(name), Err(Error::BadName));
    }
    for name in [&b"/"[..], b"/a", b"a/", b"a//b", b".", b"a/./b", b"../a"] {
        assert_eq!(mounted.open(name, true), Err(Error::BadName), "{name:?}");
        assert_eq!(mounted.unlink(name), Err(Error::NoFile), "{name:?}");
    }
    let file = mounted.open(&[b'x'; 64], true).unwrap();
    assert_eq!(mounted.write(&file, 1, b"a"), Err(Error::BadOffset));
    mounted.write(&file, 0, b"a").unwrap();
    mounted.write(&file, 1, b"b").unwrap();
    assert_eq!(mounted.read_all(&file), Ok(b"ab".to_vec()));
}

#[test]
fn a_directory_exists_while_it_has_a_file() {
    let mut mounted = Mounted::format(vec![0; 128 * BLOCK]).unwrap();
    mounted.put(b"bin/tools/a", b"1").unwrap();
    mounted.put(b"bin/b", b"22").unwrap();
    for directory in [&b"bin"[..], b"bin/tools"] {
        assert_eq!(mounted.open(directory, true), Err(Error::IsDirectory));
        assert_eq!(mounted.open(directory, false), Err(Error::IsDirectory));
        assert_eq!(mounted.unlink(directory), Err(Error::IsDirectory));
    }
    // A prefix of a directory's name is not a directory, and a file is not a directory.
    assert_eq!(mounted.open(b"bi", false), Err(Error::NoFile));
    for below in [&b"bin/b/c"[..], b"bin/b/c/d"] {
        assert_eq!(mounted.open(below, true), Err(Error::NotDirectory));
    }
    assert_eq!(mounted.open(b"bin/b/c", false), Err(Error::NoFile));
    mounted.sync().unwrap();
    let mut mounted = Mounted::mount(mounted.disk).unwrap();
    assert_eq!(mounted.open(b"bin", true), Err(Error::IsDirectory));
    mounted.unlink(b"bin/tools/a").unwrap();
    assert_eq!(mounted.open(b"bin/tools", false), Err(Error::NoFile));
    mounted.put(b"bin/tools", b"a file now").unwrap();
    assert_eq!(mounted.open(b"bin/tools/a", true), Err(Error::NotDirectory));
}

#[test]
fn an_unlinked_open_file_is_in_no_directory() {
    let mut mounted = Mounted::format(vec![0; 128 * BLOCK]).unwrap();
    let file = mounted.open(b"a/b", true).unwrap();
    mounted.unlink(b"a/b").unwrap();
    mounted.put(b"a", b"1").unwrap();
    mounted.volume.close(file);
    assert_eq!(mounted.open(b"a/b", true), Err(Error::NotDirectory));
}

#[test]
fn the_number_of_files_is_limited() {
    let mut mounted = Mounted::format(vec![0; 1_000 * BLOCK]).unwrap();
    for number in 0..os_files::FILES {
        let file = mounted.open(format!("{number}").as_bytes(), true).unwrap();
        mounted.volume.close(file);
    }
    assert_eq!(mounted.open(b"one more", true), Err(Error::NoSpace));
    mounted.sync().unwrap();
    let mut remounted = Mounted::mount(mounted.disk).unwrap();
    assert_eq!(contents(&mut remounted).len(), os_files::FILES);
    remounted.unlink(b"7").unwrap();
    assert!(remounted.open(b"one more", true).is_ok());
}
