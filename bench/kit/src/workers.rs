//! The command line of what is measured on two workers: `conserve` and `multi`, sub-commands of the microbenchmarks.

/// What a program measures on two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TwoWorkers {
    /// See [`conserve`](crate::conserve).
    Conserve,
    /// See [`multi`](crate::multi).
    Multi,
}

/// What the command line asks for on two workers, `conserve|multi [--variant V]`, with the variant (empty without one).
/// `None` if it asks for neither.
pub fn two_workers() -> Option<(TwoWorkers, String)> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let part = match words.first() {
        Some(&"conserve") => TwoWorkers::Conserve,
        Some(&"multi") => TwoWorkers::Multi,
        _ => return None,
    };
    match words.get(1..) {
        Some([]) => Some((part, String::new())),
        Some(["--variant", name]) => Some((part, (*name).to_owned())),
        _ => None,
    }
}
