"""Options: their types, their files, and their documentation, which is generated from them.

options, option_fields       the base class of all configurations, and the types of its keys
config_file                  files, environment variables and profiles that a value may name
option_table, option_docs    the same keys as text and as Markdown
topic_pattern                `topics.regex`, matched within a time limit
allowed_credentials          which credentials a replica's registration may name
"""
