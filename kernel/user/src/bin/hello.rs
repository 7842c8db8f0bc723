//! Greets the argument, by two coroutines: the more urgent one comes first.

#![no_std]
#![no_main]

use os_user::coroutine::spawn;
use os_user::{Error, argument, println, sleep};

os_user::coroutine_entry!(main);

async fn main() -> isize {
    match greet().await {
        Ok(()) => 0,
        Err(error) => {
            println!("hello: {error}");
            1
        }
    }
}

async fn greet() -> Result<(), Error> {
    let name = str::from_utf8(argument()).unwrap_or("stranger");
    let later = spawn(async { println!("level 40 comes second") }, Some(40))?;
    let first = spawn(async { println!("level 20 comes first") }, Some(20))?;
    first.await;
    later.await;
    // Microseconds, in which other programs run.
    sleep(100_000).await;
    println!("Hello, {name}!");
    Ok(())
}
