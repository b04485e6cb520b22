// Takes a compiler half a minute: all of torch's headers, and a template that is instantiated many times.
#include <torch/extension.h>

template <int N> struct Sum { static int of(int x) { return Sum<N - 1>::of(x ^ N) + N; } };
template <> struct Sum<0> { static int of(int x) { return x; } };

int sum(int x) { return Sum<300>::of(x); }
