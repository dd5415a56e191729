mod idle;
mod loss;
mod model;
