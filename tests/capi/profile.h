/* The structures of fi_profile.h, which headers before 1.20 lack. */
#ifndef PROFILE_H
#define PROFILE_H
#include "check.h"

#include <stddef.h>

#define VAR_UNEXP_MSG_CNT 0
#define VAR_UNEXP_MSG_QUEUE 1
#define VAR_CONNECTION_CNT 3
#define VAR_CONN_REQUEST 4
#define VAR_CONN_ACCEPT 5
#define VAR_CONN_REJECT 6
#define EVENT_UNEXP_MSG_RECVD 0
#define EVENT_UNEXP_MSG_MATCHED 1
#define CLASS_PROFILE 30

struct profile;

struct profile_desc {
	uint32_t id;
	int datatype_sel;
	int datatype;
	uint64_t flags;
	size_t size;
	const char *name;
	const char *desc;
};

typedef int (*profile_callback)(struct profile *, struct profile_desc *, void *, size_t, void *);

struct profile_ops {
	size_t size;
	void (*reset)(struct profile *, uint64_t);
	ssize_t (*query_vars)(struct profile *, struct profile_desc *, size_t *);
	ssize_t (*query_events)(struct profile *, struct profile_desc *, size_t *);
	ssize_t (*read_var)(struct profile *, uint32_t, void *, size_t *);
	int (*reg_callback)(struct profile *, uint32_t, profile_callback, void *);
	void (*start_reads)(struct profile *, uint64_t);
	void (*end_reads)(struct profile *, uint64_t);
};

struct profile {
	struct fid fid;
	struct profile_ops *ops;
};

/* As fi_profile_open does. */
static inline int profile_open(struct fid *fid, uint64_t flags, struct profile **profile, void *context)
{
	void *ops;
	int answer = fi_open_ops(fid, "fi_profile_ops", flags, &ops, context);
	if (!answer)
		*profile = (struct profile *)((char *)ops - offsetof(struct profile, ops));
	return answer;
}

static inline uint64_t value(struct profile *profile, uint32_t id)
{
	uint64_t value = 4711;
	size_t size = sizeof value;
	ANSWERS(profile->ops->read_var(profile, id, &value, &size), sizeof value);
	return value;
}

#endif
