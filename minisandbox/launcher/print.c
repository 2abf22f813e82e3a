/* Prints the constants of the protocol, which a test compares with those of the other side. */
#include <stdio.h>

#include "launcher.h"

void print_protocol(void)
{
	static const char *const kinds[] = {
#define X(name) #name,
		RECORD_KINDS(X)
#undef X
	};
	static const char *const stages[] = {
#define X(name) #name,
		STAGES(X)
#undef X
	};
	printf("version %d\nrecord_bytes %zu\nrequest_inline_max %d\nrequest_memfd_max %d\nfds_max %d\nlayers_max %d\n"
	       "binds_max %d\nfilters_max %d\nruns_max %d\nslot_ids %d\nwarden_id %d\n",
	       PROTOCOL_VERSION, sizeof(struct record), REQUEST_INLINE_MAX, REQUEST_MEMFD_MAX, FDS_MAX, LAYERS_MAX,
	       BINDS_MAX, FILTERS_MAX, RUNS_MAX, SLOT_IDS, WARDEN_ID);
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
		printf("record %zu %s\n", i, kinds[i]);
	for (size_t i = 0; i < sizeof stages / sizeof *stages; i++)
		printf("stage %zu %s\n", i, stages[i]);
	words_print_options();
}
