//! The front end over the fabric, and its client.
