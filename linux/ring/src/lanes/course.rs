//! How far the entries of a small file have come. Pure: results in, the next step out.
//!
//! It holds in whatever order the completions arrive: each names its entry, and nothing is concluded before all that will come have.

use super::memory::ROOM;

/// Pages are of this size, or of multiples of it.
const SMALLEST_PAGE: usize = 4096;

/// How a file is opened and read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Way {
    /// What is cached, by entries that nothing links. The open that succeeds does not complete.
    Cached,
    /// What is cached, by entries that a link orders.
    Linked,
    /// Whatever is there, by a chain.
    Waiting,
}

/// An entry of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Part {
    Open,
    Read,
    /// The read of what is behind.
    Behind,
    /// What makes a descriptor of it.
    Install,
}

impl Part {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What comes after a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Others are to come.
    Waits,
    /// [`Part::Install`] is to be queued.
    Installs,
    /// The file is done, and its descriptor holds this.
    Ends(Left),
}

/// What a direct descriptor holds when the entries of a file are through.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    Nothing,
    /// The file.
    File,
    /// The read has not found what the open made, or the reverse: the open may be yet to come.
    Unknown,
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// All of it has been read.
    All,
    /// It goes on as this descriptor.
    Begun(i32),
    Unopened,
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Course {
    way: Way,
    /// [Bits](Part::bit) of the parts whose completions are to come.
    missing: u8,
    /// By part. That of an open which does not complete is that of one that succeeds.
    results: [i32; 4],
}

impl Course {
    /// All entries but [`Part::Install`] are queued.
    pub(crate) fn new(way: Way) -> Course {
        let (open, read, behind) = (Part::Open.bit(), Part::Read.bit(), Part::Behind.bit());
        Course {
            way,
            missing: match way {
                Way::Cached => read,
                Way::Linked => open | read,
                Way::Waiting => open | read | behind,
            },
            results: [0, 0, 0, -libc::ECANCELED],
        }
    }

    /// Which one is it whose completion has the name of the slot and nothing more?
    pub(crate) fn plain(&self) -> Part {
        match self.missing == Part::Install.bit() {
            true => Part::Install,
            false => Part::Read,
        }
    }

    /// The entry of a chain that the kernel is at, as far as is known.
    pub(crate) fn waits_for(&self) -> Option<Part> {
        [Part::Open, Part::Read, Part::Behind]
            .into_iter()
            .find(|part| self.missing & part.bit() != 0)
            .filter(|_| self.way == Way::Waiting)
    }

    pub(crate) fn is_chain(&self) -> bool {
        self.way == Way::Waiting
    }

    /// A completion has arrived.
    pub(crate) fn completed(&mut self, part: Part, result: i32) -> Step {
        self.results[part as usize] = result;
        self.missing &= !part.bit();
        if self.missing != 0 {
            return Step::Waits;
        }
        // A read that was cancelled is not wanted any more.
        let goes_on = self.may_be_open() && !self.is_all() && self.read() != -libc::ECANCELED;
        if part != Part::Install && goes_on {
            self.missing = Part::Install.bit();
            return Step::Installs;
        }
        Step::Ends(self.left())
    }

    /// Has the open failed? One that does not complete, or has not, is taken to have succeeded.
    fn was_refused(&self) -> bool {
        self.results[Part::Open as usize] < 0
    }

    /// Is it worth an install?
    fn may_be_open(&self) -> bool {
        !self.was_refused() && (self.way != Way::Cached || self.read() != -libc::EBADF)
    }

    fn left(&self) -> Left {
        // Other errors may come before a look at the descriptor.
        let is_there = match self.way {
            Way::Cached => {
                let install = self.results[Part::Install as usize];
                self.read() >= 0
                    || matches!(-self.read(), libc::EAGAIN | libc::EOPNOTSUPP)
                    || install >= 0
                    || install == -libc::EMFILE
            }
            Way::Linked | Way::Waiting => !self.was_refused(),
        };
        match (self.was_refused(), is_there) {
            (false, true) => Left::File,
            (true, false) => Left::Nothing,
            (false, false) | (true, true) => Left::Unknown,
        }
    }

    /// What the read said: bytes, or an errno.
    pub(crate) fn read(&self) -> i32 {
        self.results[Part::Read as usize]
    }

    /// What the one behind it said.
    pub(crate) fn behind(&self) -> i32 {
        self.results[Part::Behind as usize]
    }

    /// Has its end been seen?
    fn is_all(&self) -> bool {
        match self.way {
            Way::Cached | Way::Linked => is_end(self.read()),
            // By a read that found nothing there.
            Way::Waiting => self.read() >= 0 && self.behind() == 0,
        }
    }

    /// When it is done.
    pub(crate) fn outcome(&self) -> Outcome {
        let fd = self.results[Part::Install as usize];
        match self.left() {
            Left::File if self.is_all() => Outcome::All,
            Left::File if fd >= 0 => Outcome::Begun(fd),
            _ => Outcome::Unopened,
        }
    }
}

/// Is it the result of a read that has seen the end of the file? What is not cached begins with a page: a read that is cut short within one is cut short by the end.
fn is_end(result: i32) -> bool {
    usize::try_from(result)
        .is_ok_and(|count| count == 0 || (count < ROOM && !count.is_multiple_of(SMALLEST_PAGE)))
}
