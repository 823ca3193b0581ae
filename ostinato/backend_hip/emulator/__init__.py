"""Device kernels on the CPU, for tests: assembled sources compiled as C++ and run a fibre a thread. Not part of a wheel."""
