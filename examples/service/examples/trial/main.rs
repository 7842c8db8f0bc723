//! Tests the service by acting as its clients and its partner. The program checks every route, then
//! measures an urgent request alone, beside the background job, and beside the job and 600
//! downloads.
//!
//! ```text
//! DATABASE_URL=… REDIS_URL=… cargo run --release --example trial target/release/service
//! ```
//!
//! The partner is an https server in this program, with a self-signed certificate. The variables
//! are `ROUNDS` (default 3), `SPAN` (seconds per figure, default 4) and `NAME` (the name of the
//! output line). The output is a line of a table with the medians over the rounds of p50 and p99,
//! and the range of p99, in microseconds. On standard error, the program explains the slowest
//! hundredth of the urgent requests. It shows how long the threads of each group waited for a CPU
//! meanwhile, including threads that do nothing for the requests. `cargo xtask compat service`
//! starts the databases and runs the program in each configuration.

mod downloads;
mod partner;
mod service;
mod urgent;
mod waits;

use std::error::Error;
use std::thread;
use std::time::Duration;

use service::Service;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const ORDERS: usize = 500;
const DOWNLOADS: usize = 600;

fn main() -> Result<()> {
    let program = std::env::args().nth(1).ok_or("usage: trial PROGRAM")?;
    let number = |name, default| std::env::var(name).map_or(Ok(default), |text| text.parse());
    let rounds: usize = number("ROUNDS", 3)?;
    let span = Duration::from_secs(number("SPAN", 4)? as u64);
    let folder = std::env::temp_dir().join(format!("service-trial-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = run_trial(&program, &folder, rounds, span);
    std::fs::remove_dir_all(&folder)?;
    result
}

fn run_trial(program: &str, folder: &std::path::Path, rounds: usize, span: Duration) -> Result<()> {
    let partner = partner::start(folder)?;
    downloads::make_files(folder)?;
    let service = Service::start(program, folder, partner)?;
    service.check_routes(ORDERS)?;
    let address = service.address;
    let measure = |span| urgent::measure(address, service.pid(), span);
    let mut table = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let mut rates = Vec::new();
    for _ in 0..rounds {
        table[0].push(measure(span)?);
        service.expect("POST", "/report", "", 202)?;
        table[1].push(measure(span)?);
        let downloads = downloads::start(address, DOWNLOADS)?;
        table[2].push(measure(Duration::from_secs(1))?);
        downloads.mark();
        table[3].push(measure(span)?);
        rates.push(downloads.stop()?);
        service.expect("DELETE", "/report", "", 204)?;
        thread::sleep(Duration::from_millis(300));
    }
    let report = service.get("/report")?;
    service.stop()?;
    let cells: Vec<String> = table
        .iter()
        .map(|figures| {
            let p50 = urgent::median(figures.iter().map(|figures| figures.p50));
            let p99 = || figures.iter().map(|figures| figures.p99);
            let (min, max) = (p99().min().unwrap_or(0), p99().max().unwrap_or(0));
            format!("{p50} / {} ({min}–{max})", urgent::median(p99()))
        })
        .collect();
    eprintln!(
        "| the slowest hundredth, µs | took | waits of {} |",
        waits::GROUPS.join(" | ")
    );
    let cases = [
        "alone",
        "beside the job",
        "while 600 downloads begin",
        "beside both",
    ];
    for (case, figures) in cases.iter().zip(&table) {
        eprintln!("| {case} | {}", urgent::slowest(figures));
    }
    let rate = urgent::median(rates);
    let name = std::env::var("NAME").unwrap_or_default();
    println!("| {name} | {} | {rate} |", cells.join(" | "));
    eprintln!("{report}");
    Ok(())
}
