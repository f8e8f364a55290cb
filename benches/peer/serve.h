/* What tables.c and ring.c share: they say that they are ready, and measure when they are asked to. */

#include <err.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void fail(const char *what)
{
	errx(1, "%s", what);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Prints `ready`, how long it took to be, and a sum over what comes out; then for every line `measure SECONDS` of the input
 * what `measure` says, in millions a second. It ends with the input. */
static void serve(double took, uint64_t sum, double (*measure)(double))
{
	char line[64];
	double seconds;

	printf("ready %.3f %016" PRIx64 "\n", took, sum);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) != NULL && strcmp(line, "quit\n") != 0) {
		if (sscanf(line, "measure %lf", &seconds) != 1)
			fail("no such order");
		printf("rate %.3f\n", measure(seconds));
		fflush(stdout);
	}
}
