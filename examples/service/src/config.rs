//! Reads the configuration from the environment.

use std::env;
use std::path::PathBuf;

pub struct Config {
    pub listen: String,
    pub database: String,
    pub redis: String,
    pub partner: String,
    pub partner_ca: Option<PathBuf>,
    pub files: PathBuf,
}

impl Config {
    pub fn from_env() -> Result<Config, String> {
        let required = |name| env::var(name).map_err(|_| format!("{name} is not set"));
        Ok(Config {
            listen: env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:8080".to_owned()),
            database: required("DATABASE_URL")?,
            redis: required("REDIS_URL")?,
            partner: required("PARTNER_URL")?,
            partner_ca: env::var_os("PARTNER_CA").map(PathBuf::from),
            files: env::var_os("FILES").map_or_else(|| PathBuf::from("files"), PathBuf::from),
        })
    }
}
