//! A fuzzer that mutates sample inputs.
//!
//! An input is added to the corpus if its target returns a behaviour that no earlier input had.
//! This replaces libFuzzer's coverage feedback, on stable Rust and without instrumented code. A
//! seed determines all inputs; a failure prints the seed and the input. Two environment variables
//! contain numbers: `UPSHIFT_FUZZ_SECONDS` (time per target; `cargo xtask soak fuzz` sets 60) and
//! `UPSHIFT_FUZZ_SEED`.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

/// Maximum length of an input, in bytes; longer inputs are cut.
const MAX_INPUT: usize = 4096;
/// Largest number of inputs that are kept for mutation.
const MAX_CORPUS: usize = 4096;

/// Bytes that delimit elements of a syntax.
const DELIMITERS: &[u8] = b"\0\t\r\n \"%,;:=./\\\xff\x80-019";

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}

/// The name of a target, the seed and the input, which are printed when the target panics.
struct FailureReport<'a>(&'a str, u64, &'a [u8]);

impl Drop for FailureReport<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let FailureReport(name, seed, bytes) = self;
            eprintln!("{name}, seed {seed}: b\"{}\"", bytes.escape_ascii());
        }
    }
}

/// Calls `target` with the samples, then with mutations of the samples and of `words`, `cases`
/// times or for the time in `UPSHIFT_FUZZ_SECONDS`. The target returns a hash of its behaviour.
pub(crate) fn fuzz(
    name: &str,
    samples: &[&[u8]],
    words: &[&str],
    cases: u32,
    mut target: impl FnMut(&[u8]) -> u64,
) {
    let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
    let time = number("UPSHIFT_FUZZ_SECONDS").map(Duration::from_secs);
    let seed = number("UPSHIFT_FUZZ_SEED").unwrap_or(match time {
        // Each run uses a new seed.
        Some(_) => std::process::id().into(),
        None => 0,
    });
    let mut random = Random(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut samples: Vec<Vec<u8>> = samples.iter().map(|sample| sample.to_vec()).collect();
    let (sample_count, started) = (samples.len(), Instant::now());
    let mut seen = HashSet::new();
    let mut count = 0;
    while count < sample_count
        || time.map_or(count < sample_count + cases as usize, |time| {
            started.elapsed() < time
        })
    {
        let input = match samples.get(count) {
            Some(sample) if count < sample_count => sample.clone(),
            _ => mutated(&samples, words, &mut random),
        };
        let report = FailureReport(name, seed, &input);
        let behaviour = target(&input);
        drop(report);
        if seen.insert(behaviour) && count >= sample_count && samples.len() < MAX_CORPUS {
            samples.push(input);
        }
        count += 1;
    }
    println!(
        "{name}: {count} inputs, {} behaviours, seed {seed}",
        seen.len()
    );
}

pub(crate) fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Returns the last letters of an error message in reverse order; they rarely come from the input.
pub(crate) fn error_kind(error: &str) -> String {
    let letters = error.chars().rev().filter(|c| c.is_ascii_alphabetic());
    letters.take(16).collect()
}

fn mutated(samples: &[Vec<u8>], words: &[&str], random: &mut Random) -> Vec<u8> {
    let mut bytes = samples[random.below(samples.len())].clone();
    for _ in 0..=random.below(4) {
        mutate(&mut bytes, samples, words, random);
    }
    bytes.truncate(MAX_INPUT);
    bytes
}

fn mutate(bytes: &mut Vec<u8>, samples: &[Vec<u8>], words: &[&str], random: &mut Random) {
    let start = random.below(bytes.len() + 1);
    let end = start + random.below(bytes.len() - start + 1).min(16);
    match random.below(10) {
        // A byte changes to another byte, or in one bit.
        0 if start < bytes.len() => bytes[start] = random.next() as u8,
        1 if start < bytes.len() => bytes[start] ^= 1 << random.below(8),
        // A word is inserted, or replaces a few bytes.
        2 | 3 if !words.is_empty() => {
            let word = words[random.below(words.len())].bytes();
            let end = if random.below(2) == 0 { start } else { end };
            bytes.splice(start..end, word);
        }
        4 => drop(bytes.drain(start..end)),
        // A part is repeated, once or many times.
        5 => {
            let part = bytes[start..end].repeat(1 << random.below(8));
            bytes.splice(start..start, part);
        }
        6 => bytes.truncate(start),
        // The end of another sample follows.
        7 => {
            let other = &samples[random.below(samples.len())];
            let from = random.below(other.len() + 1);
            bytes.splice(start.., other[from..].iter().copied());
        }
        // A part of another sample is inserted.
        8 => {
            let other = &samples[random.below(samples.len())];
            let from = random.below(other.len() + 1);
            bytes.splice(start..start, other[from..].iter().copied().take(64));
        }
        _ => bytes.insert(start, DELIMITERS[random.below(DELIMITERS.len())]),
    }
}
