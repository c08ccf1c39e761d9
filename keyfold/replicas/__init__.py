"""What a log's bucket says about replicas: who follows the log, and what each replica's bucket allows.

documents    the two documents, as values
registry     the registered replicas of a log
options      the keys of a registration
"""
