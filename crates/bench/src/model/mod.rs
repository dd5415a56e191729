//! DARE's models: of latency, by LogGP (sections 2.3 and 3.3.3), and of reliability, by components (section 5). Mathematics only.

pub mod loggp;
pub mod reliability;
