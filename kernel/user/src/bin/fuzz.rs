//! Makes random system calls from several threads until it is killed or ends itself. The arguments
//! are plausible or wrong, and the words in the shared pages are forged. The argument of the
//! program is the seed.

#![no_std]
#![no_main]

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use os_abi::shared::{DRAINING, HANDLER, RING_HEAD, RING_TAIL};
use os_abi::thread::{CRITICAL, LINE_WORDS, LOCAL_BITMAP, MAX_THREADS, YIELD_REQUESTED};
use os_user::net::listen;
use os_user::{exit, layout, now, number, pipe, process_number, sys};

os_user::entry!(main);

/// Memory that calls may write to.
static SCRATCH: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
/// Seed of the next thread.
static SEED: AtomicU64 = AtomicU64::new(0);

/// Size of a thread's stack, in pages.
const STACK_PAGES: usize = 4;

fn main() -> isize {
    let seed = core::str::from_utf8(os_user::argument()).map(str::parse);
    let Ok(Ok(seed)) = seed else { return 2 };
    for _ in 0..4 {
        if pipe().is_err() {
            return 1;
        }
    }
    let _ = (sys::socket(), sys::datagram_socket(), listen(700, 3));
    run(Random(seed))
}

extern "C" fn thread() -> ! {
    exit(run(Random(SEED.load(Relaxed))))
}

/// Generator of random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        let mut word = self.0 | 1;
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.0 = word;
        (word >> 16) % limit
    }

    /// Returns a word that is a plausible argument of a call.
    fn word(&mut self) -> usize {
        let scratch = (&raw const SCRATCH).addr();
        match self.below(16) {
            0..4 => self.below(12) as usize,
            4..8 => scratch + 8 * self.below(1000) as usize,
            8 => scratch + self.below(8192) as usize,
            9 => now() as usize + self.below(20_000) as usize,
            10 => {
                [layout::IMAGE, layout::INFO, layout::GLOBAL, layout::VDSO][self.below(4) as usize]
            }
            11 => [
                0xffff_ffc0_8020_0000,
                1 << 38,
                (1 << 38) - 4,
                usize::MAX - 3,
            ][self.below(4) as usize],
            12 => usize::MAX >> self.below(64),
            13 => process_number() + 256 * self.below(4) as usize,
            14 => 1 << self.below(64),
            _ => self.below(600) as usize,
        }
    }
}

fn run(mut random: Random) -> isize {
    loop {
        match random.below(40) {
            0 => forge(&mut random),
            1 => start_thread(&mut random),
            _ => {
                if let Some(status) = call(&mut random) {
                    return status;
                }
            }
        }
    }
}

/// Makes a random call. Returns `Some(status)` if the thread must exit with `status`.
fn call(random: &mut Random) -> Option<isize> {
    let arguments: [usize; 6] = core::array::from_fn(|_| random.word());
    // The highest number of a call is 57.
    let call = random.below(58) as usize;
    // These calls are rare, because they end or park a thread, or create a thread with an invalid
    // entry, which soon ends the process.
    let may_end_process = matches!(
        call,
        number::exit | number::thread_exit | number::thread_create | number::park
    );
    if may_end_process && random.below(200) != 0 {
        return None;
    }
    // Calls that may wait are mostly asynchronous. (`futex_lock` has no asynchronous form.)
    let waits = matches!(
        call,
        number::read..=number::futex_wait
            | number::open..=number::list
            | number::futex_lock
            | number::accept
            | number::connect
            | number::send_to
            | number::receive_from
    );
    let form = if waits && random.below(30) != 0 {
        number::ASYNCHRONOUS
    } else {
        0
    };
    let answer = sys::raw_with(call | form, arguments, random.word());
    // A forked child exits at once.
    (call == number::fork && answer == Ok(0)).then_some(0)
}

fn start_thread(random: &mut Random) {
    if let Ok(stack) = sys::map_stack(STACK_PAGES) {
        SEED.store(random.below(u64::MAX), Relaxed);
        let top = stack as usize + STACK_PAGES * layout::PAGE;
        let _ = sys::thread_create(thread as *const () as usize, top, 0);
    }
}

/// Writes a word of a page that the kernel reads.
fn forge(random: &mut Random) {
    let (page, word) = match random.below(2) {
        0 => {
            let words = [RING_HEAD, RING_TAIL, DRAINING, HANDLER];
            (layout::SHARED, words[random.below(4) as usize])
        }
        _ => {
            let line = random.below(MAX_THREADS as u64) as usize;
            let words = [LOCAL_BITMAP, CRITICAL, YIELD_REQUESTED];
            let word = words[random.below(3) as usize];
            (layout::THREADS, line * LINE_WORDS + word)
        }
    };
    // A forged handler is rare, because an invalid handler ends the process soon.
    if (page, word) != (layout::SHARED, HANDLER) || random.below(50) == 0 {
        let place = (page as *mut u64).wrapping_add(word);
        // SAFETY: both pages are mapped and writable, `word` is inside its page, and this program
        // relies on no word there.
        unsafe { place.write_volatile(random.word() as u64) };
    }
}
