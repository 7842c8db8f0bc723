//! Small files under a kernel that carries entries out in any order.
//!
//! The kernel is a table of descriptors and a heap of entries, of which it carries out any one that no link holds back, with any result; completions are seen in any order.
//! What is checked is the real [`Course`] and the real [`Table`]: no file gets bytes of another one, every file ends, and every descriptor that is not retired
//! ends up empty. All orders of a few files, and random ones of many.

use super::course::{Course, Left, Outcome, Part, Step, Way};
use super::table::Table;
use std::collections::HashSet;
use std::hash::Hash;

/// Who says when a descriptor is used again.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Rule {
    /// The one that is argued for.
    Known,
    /// As soon as its close is queued, and if the read finds nothing, at once: the rule of before, by which the model shows what it sees.
    Queued,
}

type File = u8;

/// An entry that the kernel has.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Entry {
    file: usize,
    lane: usize,
    /// `None`: a close.
    part: Option<Part>,
    /// Not before this one of the same file.
    after: Option<Part>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Small {
    lane: usize,
    way: Way,
    course: Course,
    /// Whose bytes were found, and who was made a descriptor.
    found: [Option<File>; 3],
    done: bool,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    rule: Rule,
    /// Entries are carried out, and completions seen, in their order.
    in_order: bool,
    /// Links hold; otherwise each chain may have been taken in parts.
    links_hold: bool,
    ways: Vec<Way>,
    table: Table,
    way: Way,
    retired: u32,
    // Above: what the ring knows. Below: what is.
    descriptors: Vec<Option<File>>,
    entries: Vec<Entry>,
    completions: Vec<(usize, Part, i32)>,
    files: Vec<Small>,
}

/// What may happen next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Start,
    Close,
    /// The entry at this place is carried out, with this one of its results.
    CarryOut(usize, usize),
    See(usize),
}

const OPENED: [i32; 2] = [0, -libc::ENOENT];
/// The end of it has been seen or not, or the entry is refused before a look at the descriptor.
const READ: [i32; 3] = [5, 4096, UNSEEN];
const UNSEEN: i32 = -libc::EPERM;
const BEHIND: [i32; 2] = [0, 5];
const INSTALLED: [i32; 2] = [7, -libc::EMFILE];

impl World {
    fn new(lanes: u32, ways: &[Way]) -> World {
        World {
            rule: Rule::Known,
            in_order: false,
            links_hold: true,
            ways: ways.to_vec(),
            table: Table::new(lanes),
            way: Way::Cached,
            retired: 0,
            descriptors: vec![None; lanes as usize],
            entries: Vec::new(),
            completions: Vec::new(),
            files: Vec::new(),
        }
    }

    fn results(part: Option<Part>) -> &'static [i32] {
        match part {
            None => &[0],
            Some(Part::Open) => &OPENED,
            Some(Part::Read) => &READ,
            Some(Part::Behind) => &BEHIND,
            Some(Part::Install) => &INSTALLED,
        }
    }

    fn is_held_back(&self, entry: &Entry) -> bool {
        let before = |other: &Entry| other.file == entry.file && other.part == entry.after;
        entry.after.is_some() && self.entries.iter().any(before)
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        if self.files.len() < self.ways.len() && self.table.clone().take(u32::MAX).is_some() {
            moves.push(Move::Start);
        }
        if self.table.filled() != 0 {
            moves.push(Move::Close);
        }
        for (at, entry) in self.entries.iter().enumerate() {
            if !self.is_held_back(entry) && (at == 0 || !self.in_order) {
                let results = 0..Self::results(entry.part).len();
                moves.extend(results.map(|result| Move::CarryOut(at, result)));
            }
        }
        let seen = if self.in_order { 1 } else { usize::MAX };
        moves.extend((0..self.completions.len().min(seen)).map(Move::See));
        moves
    }

    fn make(&mut self, next: Move) {
        match next {
            Move::Start => self.start(),
            Move::Close => {
                let filled = self.table.filled();
                for (lane, descriptor) in self.descriptors.iter_mut().enumerate() {
                    if filled & 1 << lane != 0 {
                        assert!(descriptor.take().is_some(), "lane {lane} is empty");
                    }
                }
                self.table.closed(filled);
            }
            Move::CarryOut(at, result) => self.carry_out(at, result),
            Move::See(at) => {
                let (file, part, result) = self.completions.remove(at);
                self.see(file, part, result);
            }
        }
    }

    fn start(&mut self) {
        let file = self.files.len();
        let lane = self.table.take(u32::MAX).expect("one is empty") as usize;
        let way = match self.ways[file] {
            Way::Waiting => Way::Waiting,
            Way::Cached | Way::Linked => self.way,
        };
        let parts: &[Part] = match way {
            Way::Cached | Way::Linked => &[Part::Open, Part::Read],
            Way::Waiting => &[Part::Open, Part::Read, Part::Behind],
        };
        for (at, &part) in parts.iter().enumerate() {
            let is_linked = way != Way::Cached && self.links_hold && at > 0;
            self.entries.push(Entry {
                file,
                lane,
                part: Some(part),
                after: is_linked.then(|| parts[at - 1]),
            });
        }
        self.files.push(Small {
            lane,
            way,
            course: Course::new(way),
            found: [None; 3],
            done: false,
        });
    }

    fn carry_out(&mut self, at: usize, result: usize) {
        let entry = self.entries.remove(at);
        let result = Self::results(entry.part)[result];
        let descriptor = &mut self.descriptors[entry.lane];
        let Some(part) = entry.part else {
            *descriptor = None;
            return;
        };
        let small = &mut self.files[entry.file];
        let (result, completes) = match part {
            Part::Open => {
                if result >= 0 {
                    *descriptor = Some(entry.file as File);
                }
                (result, result < 0 || small.way != Way::Cached)
            }
            Part::Read | Part::Behind | Part::Install => {
                let result = match *descriptor {
                    None if result != UNSEEN => -libc::EBADF,
                    _ => result,
                };
                if result > 0 {
                    let place = match part {
                        Part::Read => 0,
                        Part::Behind => 1,
                        Part::Open | Part::Install => 2,
                    };
                    small.found[place] = *descriptor;
                }
                (result, true)
            }
        };
        if completes {
            self.completions.push((entry.file, part, result));
        }
        if part == Part::Open && result < 0 {
            // What is linked to it is not carried out.
            let (ended, left) = std::mem::take(&mut self.entries)
                .into_iter()
                .partition::<Vec<_>, _>(|other| other.file == entry.file && other.after.is_some());
            self.entries = left;
            let ended = ended.into_iter().filter_map(|other| other.part);
            let ended = ended.map(|part| (entry.file, part, -libc::ECANCELED));
            self.completions.extend(ended);
        }
    }

    fn see(&mut self, file: usize, part: Part, result: i32) {
        let small = &mut self.files[file];
        if small.done || (self.rule == Rule::Queued && part == Part::Open) {
            return;
        }
        let lane = small.lane;
        match small.course.completed(part, result) {
            Step::Waits => {}
            Step::Installs => self.entries.push(Entry {
                file,
                lane,
                part: Some(Part::Install),
                after: None,
            }),
            Step::Ends(left) => {
                small.done = true;
                match small.course.outcome() {
                    Outcome::All => {}
                    Outcome::Begun(fd) => assert_eq!(fd, INSTALLED[0]),
                    Outcome::Unopened => small.found = [None; 3],
                }
                let own = |found: &Option<File>| found.is_none_or(|found| found == file as File);
                assert!(
                    small.found.iter().all(own),
                    "file {file} is taken for another one"
                );
                self.ended(file, lane, left);
            }
        }
    }

    fn ended(&mut self, file: usize, lane: usize, left: Left) {
        if self.rule == Rule::Queued {
            if left == Left::File {
                self.entries.push(Entry {
                    file,
                    lane,
                    part: None,
                    after: None,
                });
            }
            return self.table.ended(lane as u32, Left::Nothing);
        }
        if left == Left::Unknown {
            self.retired |= 1 << lane;
            self.way = Way::Linked;
        }
        self.table.ended(lane as u32, left);
    }

    /// Nothing can happen any more.
    fn is_over(&self) {
        if self.rule == Rule::Queued {
            return;
        }
        assert!(self.entries.is_empty() && self.completions.is_empty());
        assert!(self.files.iter().all(|small| small.done), "one hangs");
        let all_retired = self.retired.count_ones() as usize == self.descriptors.len();
        assert!(self.files.len() == self.ways.len() || all_retired);
        for (lane, descriptor) in self.descriptors.iter().enumerate() {
            let is_known = self.retired & 1 << lane == 0;
            assert!(!is_known || descriptor.is_none(), "lane {lane} leaks");
        }
        let in_order = self.in_order && self.links_hold;
        assert!(!in_order || self.retired == 0, "nothing was out of order");
    }
}

/// Goes through everything that may happen. Returns the number of states.
fn exhaust(world: World) -> usize {
    let mut seen = HashSet::new();
    let mut left = vec![world];
    while let Some(world) = left.pop() {
        let moves = world.moves();
        if moves.is_empty() {
            world.is_over();
            continue;
        }
        for next in moves {
            let mut world = world.clone();
            world.make(next);
            // Which completion came first does not matter where any may be seen.
            if !world.in_order {
                world
                    .completions
                    .sort_by_key(|&(file, part, result)| (file, part as u8, result));
            }
            if seen.insert(world.clone()) {
                left.push(world);
            }
        }
    }
    seen.len()
}

/// Goes one random way.
fn wander(mut world: World, seed: u64) {
    let mut state = seed;
    loop {
        let moves = world.moves();
        if moves.is_empty() {
            return world.is_over();
        }
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        world.make(moves[(state >> 33) as usize % moves.len()]);
    }
}

const C: Way = Way::Cached;
const W: Way = Way::Waiting;

#[test]
fn no_order_gives_a_file_the_bytes_of_another_one() {
    // Once more where chains break; what is cached has none.
    for (lanes, ways, links_hold) in [
        (1, vec![C, C, C], true),
        (2, vec![C, C, C], true),
        (1, vec![C, W, C], true),
        (1, vec![C, W, C], false),
        (1, vec![W, C, C], false),
        (2, vec![C, W], false),
    ] {
        let mut world = World::new(lanes, &ways);
        world.links_hold = links_hold;
        let states = exhaust(world);
        println!("{lanes} lanes, {ways:?}: {states} states");
    }
}

#[test]
fn nothing_is_retired_where_the_order_holds() {
    for (lanes, ways) in [(1, vec![C, C, C, C]), (2, vec![C, W, C])] {
        let mut world = World::new(lanes, &ways);
        world.in_order = true;
        println!("{} states", exhaust(world));
    }
}

#[test]
fn nor_does_a_random_order_of_many() {
    for seed in 0..3000_u64 {
        let random = |n: usize| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (n % 40) & 3;
        let ways: Vec<_> = (0..60)
            .map(|n| if random(n) == 0 { W } else { C })
            .collect();
        let mut world = World::new(2 + seed as u32 % 7, &ways);
        world.links_hold = seed % 3 != 0;
        world.in_order = seed % 5 == 0;
        wander(world, seed);
    }
}

/// The model sees what it is for.
#[test]
#[should_panic(expected = "is taken for another one")]
fn a_descriptor_that_is_used_while_its_close_is_queued_is_seen() {
    let mut world = World::new(1, &[C, C, C]);
    world.rule = Rule::Queued;
    exhaust(world);
}
